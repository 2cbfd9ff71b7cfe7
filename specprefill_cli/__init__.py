"""specprefill: answers about long documents, with the first token several times sooner.

`__all__` is the Python API (docs/python.md); everything else is internal. Importing the package does not load torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specprefill_cli.answering.session import open_session
    from specprefill_cli.documents.collect import read_documents
    from specprefill_cli.errors import SpecprefillError
    from specprefill_cli.record import Record
    from specprefill_cli.settings import Settings

__version__ = "0.2.0"
__all__ = ["Record", "Settings", "SpecprefillError", "open_session", "read_documents"]

MODULES = {
    "Record": "specprefill_cli.record",
    "Settings": "specprefill_cli.settings",
    "SpecprefillError": "specprefill_cli.errors",
    "open_session": "specprefill_cli.answering.session",
    "read_documents": "specprefill_cli.documents.collect",
}


def __getattr__(name: str) -> Any:
    """Import a name of the API when it is first used."""
    if name not in MODULES:
        raise AttributeError(f"module 'specprefill_cli' has no attribute '{name}'")
    return getattr(import_module(MODULES[name]), name)

"""Where the files that ship with specprefill are; `prompts` and `sample_docs` beside the package in a checkout, inside it in a
wheel.
"""

from pathlib import Path

from specprefill_cli.errors import SpecprefillError

# The pair that ships with the package, and its calibration.
BUNDLED_FOLDER = Path(__file__).resolve().parent / "bundled" / "tiny"


def packaged_folder(name: str) -> Path:
    """The folder `name` that ships with specprefill.

    Raises SpecprefillError when the installation is incomplete.
    """
    package = Path(__file__).resolve().parent
    for candidate in (package / "_data" / name, package.parent / name):
        if candidate.is_dir():
            return candidate
    raise SpecprefillError(
        f"{package}: the folder '{name}' is missing from this installation; install specprefill again"
    )

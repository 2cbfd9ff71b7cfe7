"""Models from GGUF files: transformers unpacks their weights; here is what it leaves to do."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specprefill_cli.errors import SpecprefillError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def is_gguf(name: str) -> bool:
    """Whether a model's name is that of a GGUF file."""
    return name.lower().endswith(".gguf")


def gguf_source(name: str) -> dict[str, Any]:
    """The arguments of `from_pretrained` that name a GGUF file.

    Raises SpecprefillError for a file that is not there.
    """
    path = Path(name)
    if not path.is_file():
        raise SpecprefillError(f"{name}: no such file; give the path of a GGUF file on this machine")
    return {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}


def quiet_reader(name: str) -> AbstractContextManager[Any]:
    """Keep the progress bar of transformers' GGUF reader, which has no switch, off the terminal."""
    return redirect_stderr(StringIO()) if is_gguf(name) else nullcontext()


def agreed_tokenizer(
    target: str, own: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase
) -> PreTrainedTokenizerBase:
    """The tokenizer of a target: its own, but for a GGUF file the draft's, where it has the ids that the file lists.

    The one that transformers makes from the file may split text otherwise and add tokens, so that no draft would share it.
    """
    return draft if is_gguf(target) and draft.get_vocab().items() <= own.get_vocab().items() else own

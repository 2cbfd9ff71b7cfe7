"""What transformers leaves to do where it reads a GGUF file itself."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext, redirect_stderr
from io import StringIO
from typing import TYPE_CHECKING, Any

from specprefill_cli.models.refs import Kind, ModelRef

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def quiet_reader(name: str) -> AbstractContextManager[Any]:
    """Keep the progress bar of transformers' GGUF reader, which has no switch, off the terminal."""
    return redirect_stderr(StringIO()) if ModelRef(name).kind is Kind.FILE else nullcontext()


def agreed_tokenizer(
    target: str, own: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase
) -> PreTrainedTokenizerBase:
    """The tokenizer of a target: its own, but for a GGUF file the draft's, where it has the ids that the file lists.

    The one that transformers makes from the file may split text otherwise and add tokens, so that no draft would share it.
    """
    shared = ModelRef(target).kind is Kind.FILE and draft.get_vocab().items() <= own.get_vocab().items()
    return draft if shared else own

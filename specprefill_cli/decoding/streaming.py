"""Incremental detokenisation that never splits a character."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenizers.decoders import DecodeStream

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


LOST_PREFIX = "Invalid prefix"


class Detokenizer:
    """Gives the new text after each token; bytes of an unfinished UTF-8 character wait for the rest."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer.backend_tokenizer
        self.stream = DecodeStream(skip_special_tokens=True)
        # Tokens whose text was not returned yet.
        self.waiting: list[int] = []

    def push(self, token: int) -> str:
        """The text that this token completes; empty while a character is unfinished."""
        self.waiting.append(token)
        try:
            text = self.stream.step(self.tokenizer, token) or ""
        except Exception as error:
            # Byte tokens (Gemma, Llama 2) are decoded together; tokenizers raises a plain Exception where an unfinished
            # character would change text that was already returned.
            if LOST_PREFIX not in str(error):
                raise
            self.stream = DecodeStream(skip_special_tokens=True)
            text = "".join(self.stream.step(self.tokenizer, pending) or "" for pending in self.waiting)
        if text:
            self.waiting = []
        return text

    def finish(self) -> str:
        """The rest at the end: an unfinished character, shown as U+FFFD."""
        return self.tokenizer.decode(self.waiting, skip_special_tokens=True)


@dataclass
class StopFilter:
    """Cuts a text before its first stop text. Text that may begin a stop text is held back until more follows."""

    stop_texts: Sequence[str]
    held: str = ""
    stopped: bool = False

    def push(self, text: str) -> str:
        """The text that may be shown now."""
        text, self.held = self.held + text, ""
        places = [place for stop in self.stop_texts if (place := text.find(stop)) >= 0]
        if places:
            self.stopped = True
            return text[: min(places)]
        lengths = (size for stop in self.stop_texts for size in range(1, len(stop)) if text.endswith(stop[:size]))
        shown = len(text) - max(lengths, default=0)
        self.held = text[shown:]
        return text[:shown]

"""Incremental detokenisation that never splits a character."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenizers.decoders import DecodeStream

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


LOST_PREFIX = "Invalid prefix"


class Detokenizer:
    """Gives the new text after each token; bytes of an unfinished UTF-8 character wait for the others."""

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

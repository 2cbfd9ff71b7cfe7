"""Text from token ids as they come, with every character whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenizers.decoders import DecodeStream

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TextStream:
    """Gives the new text after each token; bytes of an unfinished UTF-8 character wait for their rest."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer.backend_tokenizer
        self.stream = DecodeStream(skip_special_tokens=True)
        self.tokens: list[int] = []
        self.given = 0

    def push(self, token: int) -> str:
        """The text that this token completes; empty while a character is unfinished."""
        self.tokens.append(token)
        text = self.stream.step(self.tokenizer, token) or ""
        self.given += len(text)
        return text

    def finish(self) -> str:
        """What is left at the end: an unfinished character, shown as U+FFFD."""
        return self.tokenizer.decode(self.tokens, skip_special_tokens=True)[self.given :]

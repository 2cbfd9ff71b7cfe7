"""Proposer `draft`: the draft model decodes ahead of the target, from the cache that prefill left it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from specprefill_cli.decoding.reader import Reader
from specprefill_cli.decoding.sampling import Sampler
from specprefill_cli.decoding.verification import Proposal


class DraftProposer:
    """Draws from the draft's distribution, processed as the target's is.

    open_reader: gives the draft behind the prompt; called at the first proposal, since it may have to prefill
    entry_passes: what that costs in target passes; token_passes: what a drafted token is assumed to cost
    vocabulary: size V of the target's logits; longest_answer: tokens of answer that the draft's context has room for
    """

    name = "draft"

    def __init__(
        self,
        open_reader: Callable[[], Reader],
        sampler: Sampler,
        stop_tokens: frozenset[int],
        vocabulary: int,
        longest_answer: int,
        entry_passes: float = 0.0,
        token_passes: float = 0.5,
    ) -> None:
        self.open_reader = open_reader
        self.sampler = sampler
        self.stop_tokens = stop_tokens
        self.vocabulary = vocabulary
        self.longest_answer = longest_answer
        self.opening_passes = entry_passes
        self.token_passes = token_passes
        self.reader: Reader | None = None

    @property
    def entry_passes(self) -> float:
        return 0.0 if self.reader is not None else self.opening_passes

    def propose(self, answer: Sequence[int], count: int) -> Proposal:
        count = min(count, self.longest_answer - len(answer))
        if count < 1:
            return Proposal(self.name)
        entered = self.entry_passes > 0
        if self.reader is None:
            self.reader = self.open_reader()
        tokens: list[int] = []
        rows: list[Tensor] = []
        unread = answer[self.reader.length :]
        while len(tokens) < count and not (tokens and tokens[-1] in self.stop_tokens):
            logits = fit(self.reader.read(unread)[-1], self.vocabulary)
            if self.sampler.greedy:
                tokens.append(int(logits.argmax()))
            else:
                rows.append(self.sampler.shares(logits))
                tokens.append(self.sampler.draw(rows[-1]))
            unread = tokens[-1:]
        return Proposal(self.name, tuple(tokens), torch.stack(rows) if rows else None, entered)

    def settle(self, length: int) -> None:
        if self.reader is not None:
            self.reader.rollback(length)


def fit(logits: Tensor, size: int) -> Tensor:
    """Logits [V] as [size]: models that share a tokenizer may still pad their vocabularies to different sizes."""
    return F.pad(logits, (0, size - len(logits)), value=float("-inf"))

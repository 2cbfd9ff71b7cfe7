"""Proposer `draft`: the draft model decodes ahead of the target, from the cache that prefill left it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specprefill_cli.decoding.reader import ModelReader
from specprefill_cli.decoding.sampling import Sampler
from specprefill_cli.decoding.verification import Proposal
from specprefill_cli.models.passes import Steps


@dataclass(eq=False)
class DraftProposer:
    """Draws from the draft's distribution, with the target's sampling parameters.

    open_reader: opens the draft after the prompt; called at the first proposal, since it may have to prefill
    entry_passes: cost of that in target passes, 0 afterwards; token_passes: assumed cost of a drafted token
    vocabulary: size V of the target's logits; longest_answer: tokens of answer that the draft's context holds
    """

    name = "draft"
    open_reader: Callable[[], ModelReader]
    sampler: Sampler
    stop_tokens: frozenset[int]
    vocabulary: int
    longest_answer: int
    entry_passes: float = 0.0
    token_passes: float = 0.5
    reader: ModelReader | None = None

    def propose(self, answer: Sequence[int], count: int) -> Steps[Proposal]:
        count = min(count, self.longest_answer - len(answer))
        if count < 1:
            return Proposal(self.name)
        entered = self.entry_passes > 0
        if self.reader is None:
            self.reader, self.entry_passes = self.open_reader(), 0.0
        tokens: list[int] = []
        rows: list[Tensor] = []
        unread = answer[self.reader.length :]
        while len(tokens) < count and not (tokens and tokens[-1] in self.stop_tokens):
            logits = fit((yield from self.reader.read(unread))[-1], self.vocabulary)
            if self.sampler.greedy:
                tokens.append(int(logits.argmax()))
            else:
                rows.append(self.sampler.probabilities(logits).cpu())
                tokens.append(self.sampler.draw(rows[-1]))
            unread = tokens[-1:]
        return Proposal(self.name, tuple(tokens), torch.stack(rows) if rows else None, entered)

    def rollback(self, length: int) -> None:
        if self.reader is not None:
            self.reader.rollback(length)


def fit(logits: Tensor, size: int) -> Tensor:
    """Logits [V] as [size]: models that share a tokenizer may still pad their vocabularies to different sizes."""
    return F.pad(logits, (0, size - len(logits)), value=float("-inf"))

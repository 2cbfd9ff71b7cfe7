"""Proposers of tokens for the target to verify: the text so far (`lookup`), or the draft model (`draft`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specprefill_cli.decoding.rounds import Proposal
from specprefill_cli.decoding.runner import SequenceRunner
from specprefill_cli.decoding.sampling import Sampler
from specprefill_cli.models.running.passes import ForwardGenerator

# Shortest and longest suffix of the answer that `lookup` searches for in the text.
SHORTEST_MATCH, LONGEST_MATCH = 2, 8


class LookupProposer:
    """Searches prompt and answer for the answer's last tokens, and proposes what followed: an answer often quotes.

    seen: [n] prompt tokens in the target's cache, in order: it can quote no others
    entry_passes: cost of getting ready for its first proposal, in target passes
    token_passes: assumed cost of a proposed token until it is measured, in target passes
    """

    name = "lookup"
    entry_passes = 0.0
    token_passes = 0.0

    def __init__(self, seen: Tensor) -> None:
        self.seen = seen.numpy()

    def propose(self, answer: Sequence[int], count: int) -> ForwardGenerator[Proposal]:
        """Propose up to `count` (at least 1) tokens after an answer that is not empty; possibly none."""
        yield from ()
        text = np.concatenate([self.seen, answer])
        return Proposal(self.name, tuple(continuation(text, len(answer), count).tolist()))

    def rollback(self, length: int) -> None:
        """Nothing to do: it sees accepted tokens only."""


def continuation(text: np.ndarray, answer_length: int, count: int) -> np.ndarray:
    """Up to `count` tokens that followed an earlier occurrence of the text's last tokens; empty without such an occurrence.

    text: [n]; its last `answer_length` tokens are the answer, and only those are searched for. The longest match wins, and
    of several the latest. A match that runs into the end of the text repeats with its period.
    """
    longest = min(LONGEST_MATCH, answer_length)
    if longest < SHORTEST_MATCH:
        return text[:0]
    match_ends = np.flatnonzero(text[:-1] == text[-1])
    for back in range(1, longest):
        longer = match_ends[match_ends >= back]
        longer = longer[text[longer - back] == text[-1 - back]]
        if len(longer) == 0:
            if back < SHORTEST_MATCH:
                return text[:0]
            break
        match_ends = longer
    start = match_ends[-1] + 1
    return np.resize(text[start : start + count], count)


@dataclass(eq=False)
class DraftProposer:
    """Decodes ahead of the target: draws from the draft's distribution, with the target's sampling parameters.

    open_runner: opens the draft after the prompt; called at the first proposal, since it may have to prefill
    entry_passes: cost of that in target passes, 0 afterwards; token_passes: assumed cost of a drafted token
    vocabulary: size V of the target's logits; longest_answer: tokens of answer that the draft's context holds
    """

    name = "draft"
    open_runner: Callable[[], SequenceRunner]
    sampler: Sampler
    stop_tokens: frozenset[int]
    vocabulary: int
    longest_answer: int
    entry_passes: float = 0.0
    token_passes: float = 0.5
    runner: SequenceRunner | None = None

    def propose(self, answer: Sequence[int], count: int) -> ForwardGenerator[Proposal]:
        """Propose up to `count` (at least 1) tokens after an answer that is not empty; none where its context is full."""
        count = min(count, self.longest_answer - len(answer))
        if count < 1:
            return Proposal(self.name)
        entered = self.entry_passes > 0
        if self.runner is None:
            self.runner, self.entry_passes = self.open_runner(), 0.0
        tokens: list[int] = []
        distributions: list[Tensor] = []
        unread = answer[self.runner.length :]
        while len(tokens) < count and not (tokens and tokens[-1] in self.stop_tokens):
            logits = resize_logits((yield from self.runner.read(unread))[-1], self.vocabulary)
            if self.sampler.greedy:
                tokens.append(int(logits.argmax()))
            else:
                distributions.append(self.sampler.probabilities(logits).cpu())
                tokens.append(self.sampler.draw(distributions[-1]))
            unread = tokens[-1:]
        return Proposal(self.name, tuple(tokens), torch.stack(distributions) if distributions else None, entered)

    def rollback(self, length: int) -> None:
        """Keep the first `length` tokens of the answer: the others were rejected."""
        if self.runner is not None:
            self.runner.rollback(length)


Proposer = LookupProposer | DraftProposer


def resize_logits(logits: Tensor, size: int) -> Tensor:
    """Logits [V] as [size]: models that share a tokenizer may still pad their vocabularies to different sizes."""
    return F.pad(logits, (0, size - len(logits)), value=float("-inf"))

"""Decoding in rounds: tokens are proposed, and one pass of the target verifies them (arXiv 2211.17192).

A round in which nothing is proposed is a step of plain decoding, so there is one loop for both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from specprefill_cli.decoding.adaptive import Pace, Verdict
from specprefill_cli.decoding.measures import DecodeSpeed, Round, RoundLog
from specprefill_cli.decoding.proposers.base import Proposer
from specprefill_cli.decoding.reader import Reader
from specprefill_cli.decoding.sampling import Sampler
from specprefill_cli.decoding.verification import NOTHING, Correction, Proposal, positive_part, verify


class Speculator:
    """Asks its proposers in turn, each for as many tokens as the pace says; the first that knows any is taken."""

    def __init__(self, proposers: Sequence[Proposer], pace: Pace) -> None:
        self.proposers = proposers
        self.pace = pace
        self.log = RoundLog()

    def propose(self, answer: Sequence[int], most: int) -> Proposal:
        """Up to `most` tokens that may follow the answer."""
        for proposer in self.proposers if most > 0 else ():
            count = min(most, self.pace.count(proposer, len(answer)))
            proposal = proposer.propose(answer, count) if count > 0 else NOTHING
            if proposal.tokens:
                return proposal
        return NOTHING

    def observe(self, one: Round) -> None:
        self.log.add(one)
        self.pace.observe(one)

    def settle(self, length: int) -> None:
        """Let all proposers forget all but the first `length` tokens of the answer."""
        for proposer in self.proposers:
            proposer.settle(length)

    @property
    def verdict(self) -> Verdict:
        return self.pace.verdict()


def decode(
    target: Reader,
    first: int,
    stop_tokens: frozenset[int],
    most: int,
    sampler: Sampler,
    speed: DecodeSpeed,
    speculator: Speculator | None = None,
    clock: Callable[[], float] = time.perf_counter,
    correct: Correction = positive_part,
) -> Iterator[int]:
    """Yield up to `most` tokens, the given first one included, until a stop token (which is not yielded).

    Between two rounds, and when it is interrupted, the target's cache holds the prompt and every token of the answer but
    the last one; a proposer's cache at most these. Greedy decoding gives the tokens of plain decoding, except where two
    logits lie within the rounding between a pass over one token and a pass over several.
    """
    if first in stop_tokens:
        return
    answer, ended = [first], False
    yield first
    while len(answer) < most and not ended:
        start = clock()
        # The last token has been chosen and not yet read.
        known = len(answer) - 1
        try:
            proposal = speculator.propose(answer, most - len(answer) - 1) if speculator is not None else NOTHING
            proposed = clock()
            logits = target.read([answer[-1], *proposal.tokens], len(proposal.tokens) + 1)
            accepted, following = verify(logits, proposal, sampler, correct)
            verified = clock()
            decoded = [*proposal.tokens[:accepted], following]
            fresh = before_stop(decoded, stop_tokens)
            ended = len(fresh) < len(decoded)
            answer += fresh
            known = len(answer) if ended else len(answer) - 1
        finally:
            target.rollback(known)
            if speculator is not None:
                speculator.settle(known)
        if speculator is not None:
            # Tokens behind the answer's end were right, and nobody wanted them.
            useful = min(accepted, len(fresh) + ended)
            speculator.observe(Round(proposal, useful, proposed - start, verified - proposed))
        speed.tokens += len(fresh) + ended
        speed.seconds += clock() - start
        yield from fresh


def before_stop(tokens: Sequence[int], stop_tokens: frozenset[int]) -> Sequence[int]:
    """The tokens before the first stop token; all where there is none."""
    return next((tokens[:place] for place, token in enumerate(tokens) if token in stop_tokens), tokens)

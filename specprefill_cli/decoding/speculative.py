"""Decoding in rounds: tokens are proposed, and one pass of the target verifies them (arXiv 2211.17192).

A round in which nothing is proposed is a step of plain decoding, so there is one loop for both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import takewhile
from typing import Any

from torch import Tensor

from specprefill_cli.decoding.adaptive import AdaptivePace, FixedPace
from specprefill_cli.decoding.proposers import Proposer
from specprefill_cli.decoding.reader import ModelReader
from specprefill_cli.decoding.sampling import Sampler, log_probabilities
from specprefill_cli.decoding.verification import NO_PROPOSAL, DecodeSpeed, Proposal, Round, RoundLog, verify
from specprefill_cli.models.passes import Pass, Steps
from specprefill_cli.record import Verdict


class Speculator:
    """Asks its proposers in turn, each for as many tokens as the pace allows; the first proposal that is not empty is used."""

    def __init__(self, proposers: Sequence[Proposer], pace: FixedPace | AdaptivePace) -> None:
        self.proposers = proposers
        self.pace = pace
        self.log = RoundLog()

    def propose(self, answer: Sequence[int], limit: int) -> Steps[Proposal]:
        """Up to `limit` tokens that may follow the answer."""
        for proposer in self.proposers if limit > 0 else ():
            count = min(limit, self.pace.count(proposer, len(answer)))
            proposal = (yield from proposer.propose(answer, count)) if count > 0 else NO_PROPOSAL
            if proposal.tokens:
                return proposal
        return NO_PROPOSAL

    def observe(self, round_: Round) -> None:
        """Log a round and adapt the pace."""
        self.log.add(round_)
        self.pace.observe(round_)

    def rollback(self, length: int) -> None:
        """Roll all proposers back to the first `length` tokens of the answer."""
        for proposer in self.proposers:
            proposer.rollback(length)

    @property
    def verdict(self) -> Verdict:
        """Whether speculation is on, and why not."""
        return self.pace.verdict()


def decode(
    target: ModelReader,
    first: int,
    stop_tokens: frozenset[int],
    limit: int,
    sampler: Sampler,
    speed: DecodeSpeed,
    speculator: Speculator | None = None,
    clock: Callable[[], float] = time.perf_counter,
    emit: Callable[[int], Iterable[Any]] = lambda token: (token,),
) -> Generator[Pass | Any, Tensor, None]:
    """Yield the output of `emit` for up to `limit` tokens, the given first one included, but for no stop token.

    Between them it yields the passes that it needs, and is sent their logits.

    Between two rounds, and after an interrupt, the target's cache holds the prompt and every token of the answer but
    the last; a proposer's cache holds at most these. Greedy decoding gives the tokens of plain decoding, except where two
    logits lie within the rounding between a pass over one token and a pass over several.
    """
    if first in stop_tokens:
        return
    answer, ended = [first], False
    yield from emit(first)
    while len(answer) < limit and not ended:
        start = clock()
        # The last token has been sampled and not yet read.
        kept_length = len(answer) - 1
        try:
            proposal = NO_PROPOSAL
            if speculator is not None:
                proposal = yield from speculator.propose(answer, limit - len(answer) - 1)
            proposed = clock()
            logits = yield from target.read([answer[-1], *proposal.tokens], len(proposal.tokens) + 1)
            accepted, following = verify(logits, proposal, sampler)
            verified = clock()
            decoded = [*proposal.tokens[:accepted], following]
            fresh = list(takewhile(lambda token: token not in stop_tokens, decoded))
            ended = len(fresh) < len(decoded)
            answer += fresh
            kept_length = len(answer) if ended else len(answer) - 1
        finally:
            target.rollback(kept_length)
            if speculator is not None:
                speculator.rollback(kept_length)
        if speculator is not None:
            # Tokens accepted after the answer's end do not count.
            useful = min(accepted, len(fresh) + ended)
            speculator.observe(Round(proposal, useful, proposed - start, verified - proposed))
        counted = len(fresh) + ended
        speed.tokens += counted
        speed.rounds.append(log_probabilities(logits[:counted], decoded[:counted]))
        speed.seconds += clock() - start
        for token in fresh:
            yield from emit(token)

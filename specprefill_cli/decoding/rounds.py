"""Decoding in rounds of proposed tokens and a pass that verifies them (arXiv 2211.17192); plain decoding proposes none."""

import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from specprefill_cli.decoding.proposers import LookupProposer, Proposer, draft_may_propose, draft_proposer
from specprefill_cli.decoding.runner import SequenceRunner
from specprefill_cli.decoding.sampling import NO_PROPOSAL, Round, Sampler, log_probabilities, verify
from specprefill_cli.decoding.speculation import SpeculationState, Speculator
from specprefill_cli.models.running.passes import ForwardInput
from specprefill_cli.prefill.request import PrefillRequest, PrefillResult
from specprefill_cli.settings import AUTO, OFF, Settings


@dataclass
class DecodeLog:
    """What was measured while an answer was decoded.

    tokens: how many after the first, a stop token included; seconds: of decoding them, without the caller's time
    scores: of each round, the logarithms [k] of the target's probabilities of the same tokens
    rounds: rounds with a proposal, without its distributions, which are a vocabulary wide for every token
    """

    tokens: int = 0
    seconds: float = 0.0
    scores: list[Tensor] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)

    @property
    def log_probabilities(self) -> list[float]:
        return torch.cat(self.scores).tolist() if self.scores else []

    @property
    def proposers(self) -> list[str]:
        """Names of the proposers that were used, in the order of their first use."""
        return list(dict.fromkeys(round_.proposal.proposer for round_ in self.rounds))

    def figures(self) -> dict[str, Any]:
        """Fields of the record; those about proposals are None (or empty) before the first."""
        drafted, accepted = sum(round_.drafted for round_ in self.rounds), [round_.accepted for round_ in self.rounds]
        return {
            "tokens_per_second": self.tokens / self.seconds if self.tokens and self.seconds else None,
            "acceptance_rate": sum(accepted) / drafted if drafted else None,
            # Without the target's own token that ends each round.
            "accepted_length_mean": sum(accepted) / len(accepted) if accepted else None,
            # Entry n: rounds in which n tokens were accepted.
            "accepted_histogram": [accepted.count(number) for number in range(max(accepted, default=-1) + 1)],
            "proposer": " and ".join(self.proposers) or None,
        }


def decode(
    target: SequenceRunner,
    first: int,
    stop_tokens: frozenset[int],
    limit: int,
    sampler: Sampler,
    log: DecodeLog,
    speculator: Speculator | None = None,
    clock: Callable[[], float] = time.perf_counter,
    emit: Callable[[int], Iterable[Any]] = lambda token: (token,),
) -> Generator[ForwardInput | Any, Tensor, None]:
    """Yield the output of `emit` for up to `limit` tokens, `first` included, but no stop token; and passes, sent their logits.

    Between two rounds, and after an interrupt, the target's cache holds the prompt and every token of the answer but
    the last; a proposer's cache holds at most these. The distribution is the target's; greedy tokens are those of plain
    decoding, except where two logits differ by no more than the rounding between passes over one and several tokens.
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
            new_tokens = list(takewhile(lambda token: token not in stop_tokens, decoded))
            ended = len(new_tokens) < len(decoded)
            answer += new_tokens
            kept_length = len(answer) if ended else len(answer) - 1
        finally:
            target.rollback(kept_length)
            if speculator is not None:
                speculator.rollback(kept_length)
        counted = len(new_tokens) + ended
        # Tokens accepted after the answer's end do not count.
        completed = Round(proposal, min(accepted, counted), proposed - start, verified - proposed)
        if speculator is not None:
            speculator.observe(completed)
        if completed.drafted:
            log.rounds.append(replace(completed, proposal=replace(proposal, probabilities=None)))
        log.tokens += counted
        log.scores.append(log_probabilities(logits[:counted], decoded[:counted]))
        log.seconds += clock() - start
        for token in new_tokens:
            yield from emit(token)


def choose_speculator(
    request: PrefillRequest,
    prefilled: PrefillResult,
    settings: Settings,
    sampler: Sampler,
    stop_tokens: frozenset[int],
    state: SpeculationState,
    known_tokens: tuple[int, ...] = (),
) -> Speculator | None:
    """The proposers of an answer, first lookup, which is nearly free; a sampled one learns nothing, so that a seed repeats it."""
    if settings.speculate == OFF:
        return Speculator((), state, 0, known_tokens) if known_tokens else None
    proposers: list[Proposer] = []
    if settings.proposer in (AUTO, LookupProposer.name):
        proposers.append(LookupProposer(request.prompt.tokens[prefilled.seen_tokens]))
    if draft_may_propose(settings, request.pair):
        proposers.append(draft_proposer(request, prefilled, sampler, stop_tokens))
    fixed = None if settings.speculate == AUTO else int(settings.speculate)
    state = state if sampler.greedy else SpeculationState(learns_costs=False)
    computed_tokens = prefilled.plan.kept_tokens - prefilled.cached_tokens
    state.prefill = request.clock.phases()["target_prefill"], max(1, computed_tokens)
    return Speculator(proposers, state, fixed, known_tokens)

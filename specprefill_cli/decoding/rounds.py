"""Decoding in rounds: tokens are proposed, and a single pass of the target verifies them (arXiv 2211.17192).

The output keeps the target's distribution exactly. A round without a proposal is a step of plain decoding, so
speculative and plain decoding share a loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from specprefill_cli.decoding.sampling import Sampler, log_probabilities
from specprefill_cli.models.running.passes import ForwardGenerator, ForwardInput

if TYPE_CHECKING:
    from specprefill_cli.decoding.runner import SequenceRunner


@dataclass(frozen=True)
class Proposal:
    """Proposed tokens, and the distributions [k, V] they were drawn from, on the CPU.

    probabilities: None for a deterministic proposer (all mass on each token) and for greedy decoding
    entered: the proposer prefilled the prompt first, so that its time says nothing about drafting
    """

    proposer: str
    tokens: tuple[int, ...] = ()
    probabilities: Tensor | None = None
    entered: bool = False


NO_PROPOSAL = Proposal("")


def positive_part(probabilities: Tensor, proposal: Proposal, place: int) -> Tensor:
    """Weights [V] for the replacement of the rejected token at `place`, from the target's probabilities [V] there.

    The positive part of target minus proposal, not normalised (arXiv 2211.17192, section 2.3).
    """
    if proposal.probabilities is None:
        residual = probabilities.clone()
        residual[proposal.tokens[place]] = 0
    else:
        residual = (probabilities - proposal.probabilities[place]).clamp(min=0)
    # Equal distributions leave only rounding errors: then either is right.
    return residual if residual.sum() > 0 else probabilities


def verify(logits: Tensor, proposal: Proposal, sampler: Sampler) -> tuple[int, int]:
    """How many of k proposed tokens are accepted, and the token that follows them.

    logits: [k + 1, V] of the target after the last known token and after each proposed token

    Token i is accepted with probability min(1, target_i / proposal_i); the first rejected token is replaced by a draw
    from the positive part of target minus proposal, and k accepted tokens are followed by a bonus draw from the target.
    Greedy decoding is the special case of distributions with a single token: accepted is what the target would choose.
    """
    count = len(proposal.tokens)
    if count == 0:
        return 0, sampler(logits[0])
    tokens = torch.tensor(proposal.tokens)
    if sampler.greedy:
        chosen = logits.argmax(-1).cpu()
        accepted = count_leading(chosen[:count] == tokens)
        return accepted, int(chosen[accepted])
    probabilities = sampler.probabilities(logits)
    # Copying all rows would take megabytes: only a number of each, and a single row, are needed.
    target = probabilities[:count].gather(1, tokens[:, None].to(logits.device))[:, 0].cpu()
    drawn = proposal.probabilities
    draft = torch.ones(count) if drawn is None else drawn.gather(1, tokens[:, None])[:, 0]
    accepted = count_leading(sampler.uniform(count) * draft < target)
    weights = probabilities[accepted].cpu()
    return accepted, sampler.draw(weights if accepted == count else positive_part(weights, proposal, accepted))


def count_leading(flags: Tensor) -> int:
    """How many flags are true before the first that is false."""
    return int(flags.long().cumprod(0).sum())


@dataclass(frozen=True)
class Round:
    """A pass of the target: the proposal that it verified, and how many of its tokens were accepted.

    propose_seconds, target_seconds: drafting, and the target's pass with choosing the tokens
    """

    proposal: Proposal
    accepted: int
    propose_seconds: float = 0.0
    target_seconds: float = 0.0

    @property
    def drafted(self) -> int:
        """Proposed tokens."""
        return len(self.proposal.tokens)


class ProposalSource(Protocol):
    """Proposes tokens for each round, and learns from the rounds."""

    def propose(self, answer: Sequence[int], limit: int) -> ForwardGenerator[Proposal]:
        """Propose up to `limit` tokens that may follow the answer; possibly none."""

    def rollback(self, length: int) -> None:
        """Keep only the first `length` tokens of the answer."""

    def observe(self, round_: Round) -> None:
        """Learn from a round."""


@dataclass
class DecodeLog:
    """What was measured while an answer was decoded. Figures of proposals are None (or empty) before the first.

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
        """Logarithms of the target's probabilities of all tokens."""
        return torch.cat(self.scores).tolist() if self.scores else []

    @property
    def tokens_per_second(self) -> float | None:
        """None before the second token."""
        return self.tokens / self.seconds if self.tokens and self.seconds else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted tokens divided by drafted tokens."""
        drafted = sum(round_.drafted for round_ in self.rounds)
        return sum(round_.accepted for round_ in self.rounds) / drafted if drafted else None

    @property
    def accepted_length_mean(self) -> float | None:
        """Accepted tokens a round, without the target's own token that ends each round."""
        return sum(round_.accepted for round_ in self.rounds) / len(self.rounds) if self.rounds else None

    @property
    def accepted_histogram(self) -> list[int]:
        """Entry n: rounds in which n tokens were accepted."""
        counts = [round_.accepted for round_ in self.rounds]
        return [counts.count(number) for number in range(max(counts) + 1)] if counts else []

    @property
    def proposers(self) -> list[str]:
        """Names of the proposers that were used, in the order of their first use."""
        return list(dict.fromkeys(round_.proposal.proposer for round_ in self.rounds))


def decode(
    target: SequenceRunner,
    first: int,
    stop_tokens: frozenset[int],
    limit: int,
    sampler: Sampler,
    log: DecodeLog,
    speculator: ProposalSource | None = None,
    clock: Callable[[], float] = time.perf_counter,
    emit: Callable[[int], Iterable[Any]] = lambda token: (token,),
) -> Generator[ForwardInput | Any, Tensor, None]:
    """Yield the output of `emit` for up to `limit` tokens, `first` included, but for no stop token.

    In between, yield the passes to run, and be sent their logits.

    Between two rounds, and after an interrupt, the target's cache holds the prompt and every token of the answer but
    the last; a proposer's cache holds at most these. Greedy decoding gives the tokens of plain decoding, except where two
    logits differ by no more than the rounding between a pass over a single token and a pass over several.
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

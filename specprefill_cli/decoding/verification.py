"""Verifying proposed tokens so that the output keeps the target's distribution exactly (arXiv 2211.17192), and counting."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from specprefill_cli.decoding.sampling import Sampler


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
    """Weights [V] of the token that replaces the rejected one at `place`, from the target's probabilities [V] of it.

    The positive part of target minus proposal, not normalised (arXiv 2211.17192, section 2.3).
    """
    if proposal.probabilities is None:
        residual = probabilities.clone()
        residual[proposal.tokens[place]] = 0
    else:
        residual = (probabilities - proposal.probabilities[place]).clamp(min=0)
    # Equal distributions leave nothing but rounding: then either is right.
    return residual if residual.sum() > 0 else probabilities


def verify(logits: Tensor, proposal: Proposal, sampler: Sampler) -> tuple[int, int]:
    """How many of k proposed tokens are accepted, and the token that follows them.

    logits: [k + 1, V] of the target after the last known token and after each proposed token

    Token i is accepted with probability min(1, target_i / proposal_i); the first one that is not is replaced by a draw
    from the positive part of target minus proposal, and behind k accepted tokens comes a bonus draw from the target.
    Greedy decoding is the special case of distributions with one token each: accepted is what the target would choose.
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
    # All rows would be megabytes to copy: one number of each, and one row, are needed.
    target = probabilities[:count].gather(1, tokens[:, None].to(logits.device))[:, 0].cpu()
    drawn = proposal.probabilities
    draft = torch.ones(count) if drawn is None else drawn.gather(1, tokens[:, None])[:, 0]
    accepted = count_leading(sampler.uniform(count) * draft < target)
    weights = probabilities[accepted].cpu()
    return accepted, sampler.draw(weights if accepted == count else positive_part(weights, proposal, accepted))


def count_leading(flags: Tensor) -> int:
    """How many flags are true before the first that is not."""
    return int(flags.long().cumprod(0).sum())


@dataclass
class DecodeSpeed:
    """Tokens after the first, a stop token included, and the seconds of decoding them, without the caller's time.

    rounds: of each round, the logarithms [k] of the target's probabilities of the same tokens
    """

    tokens: int = 0
    seconds: float = 0.0
    rounds: list[Tensor] = field(default_factory=list)

    @property
    def log_probabilities(self) -> list[float]:
        """Logarithms of the target's probabilities of all tokens."""
        return torch.cat(self.rounds).tolist() if self.rounds else []

    @property
    def tokens_per_second(self) -> float | None:
        """None before the second token."""
        return self.tokens / self.seconds if self.tokens and self.seconds else None


@dataclass(frozen=True)
class Round:
    """One pass of the target: the proposal before it, and how much of that was accepted.

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


@dataclass
class RoundLog:
    """All rounds of an answer with a proposal; every figure is None (or empty) before the first."""

    rounds: list[Round] = field(default_factory=list)

    def add(self, round_: Round) -> None:
        """Keep a round in which something was proposed."""
        if round_.drafted:
            # Without its distributions: they are a vocabulary wide for every token.
            self.rounds.append(replace(round_, proposal=replace(round_.proposal, probabilities=None)))

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted tokens over drafted ones."""
        drafted = sum(round_.drafted for round_ in self.rounds)
        return sum(round_.accepted for round_ in self.rounds) / drafted if drafted else None

    @property
    def accepted_length_mean(self) -> float | None:
        """Accepted tokens a round, without the target's own token that ends each round."""
        return sum(round_.accepted for round_ in self.rounds) / len(self.rounds) if self.rounds else None

    @property
    def accepted_histogram(self) -> list[int]:
        """Place n: rounds in which n tokens were accepted."""
        counts = [round_.accepted for round_ in self.rounds]
        return [counts.count(number) for number in range(max(counts) + 1)] if counts else []

    @property
    def proposers(self) -> list[str]:
        """Names of the proposers that were used, in the order of their first use."""
        return list(dict.fromkeys(round_.proposal.proposer for round_ in self.rounds))

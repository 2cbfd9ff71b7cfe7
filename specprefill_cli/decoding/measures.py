"""Counts and times of decoding."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from specprefill_cli.decoding.verification import Proposal


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
    """One pass of the target: what was proposed before it and how much of that was accepted.

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
    """All rounds of an answer in which something was proposed; every figure is None (or empty) before the first."""

    rounds: list[Round] = field(default_factory=list)

    def add(self, round_: Round) -> None:
        """Keep a round in which something was proposed."""
        if round_.drafted:
            # Without its distributions, which are a vocabulary wide for every token.
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

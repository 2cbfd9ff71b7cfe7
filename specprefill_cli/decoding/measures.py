"""What is counted while an answer is decoded."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from specprefill_cli.decoding.verification import Proposal


@dataclass
class DecodeSpeed:
    """Tokens after the first, a stop token included, and the seconds they took: without those the reader took."""

    tokens: int = 0
    seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float | None:
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
        return len(self.proposal.tokens)


@dataclass
class RoundLog:
    """All rounds of an answer in which something was proposed; every figure is None (or empty) before the first."""

    rounds: list[Round] = field(default_factory=list)

    def add(self, one: Round) -> None:
        if one.drafted:
            # The distributions have done their work; kept, they would be a vocabulary for every token.
            self.rounds.append(replace(one, proposal=replace(one.proposal, shares=None)))

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted tokens over drafted ones."""
        return (
            sum(one.accepted for one in self.rounds) / sum(one.drafted for one in self.rounds) if self.rounds else None
        )

    @property
    def accepted_length_mean(self) -> float | None:
        """Accepted tokens a round, without the target's own token that ends each round."""
        return sum(one.accepted for one in self.rounds) / len(self.rounds) if self.rounds else None

    @property
    def accepted_histogram(self) -> list[int]:
        """Place n: rounds in which n tokens were accepted."""
        counts = [one.accepted for one in self.rounds]
        return [counts.count(number) for number in range(max(counts) + 1)] if counts else []

    @property
    def proposers(self) -> list[str]:
        """Names of the proposers that were used, in the order of their first use."""
        return list(dict.fromkeys(one.proposal.proposer for one in self.rounds))

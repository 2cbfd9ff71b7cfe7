"""Verifying an answer that is known before: it is proposed whole, as long as the target agrees with it."""

from __future__ import annotations

from collections.abc import Sequence

from specprefill_cli.decoding.adaptive import FixedPace
from specprefill_cli.decoding.measures import Round
from specprefill_cli.decoding.speculative import Speculator
from specprefill_cli.decoding.verification import Proposal
from specprefill_cli.models.passes import Steps

NAME = "known"


class KnownAnswer(Speculator):
    """Proposes the rest of a known answer; behind a token that differs from it, what others propose.

    others: None where nothing else is proposed
    """

    def __init__(self, tokens: Sequence[int], others: Speculator | None) -> None:
        super().__init__(
            others.proposers if others is not None else (), FixedPace(0) if others is None else others.pace
        )
        self.tokens = tuple(tokens)

    def propose(self, answer: Sequence[int], most: int) -> Steps[Proposal]:
        rest = self.tokens[len(answer) :][: max(most, 0)]
        if rest and self.tokens[: len(answer)] == tuple(answer):
            return Proposal(NAME, rest)
        return (yield from super().propose(answer, most))

    def observe(self, round_: Round) -> None:
        """Teach the pace nothing about a known answer."""
        if round_.proposal.proposer != NAME:
            super().observe(round_)

"""Proposers of tokens that the target verifies: one file a proposer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from specprefill_cli.decoding.verification import Proposal
    from specprefill_cli.models.passes import Steps


class Proposer(Protocol):
    """Proposes the tokens that may follow the answer so far.

    entry_passes: cost of getting ready for its first proposal, in target passes
    token_passes: assumed cost of one proposed token before it was measured, in target passes
    """

    name: str
    entry_passes: float
    token_passes: float

    def propose(self, answer: Sequence[int], count: int) -> Steps[Proposal]:
        """Up to `count` (at least 1) tokens that may follow an answer of at least one token; possibly none."""

    def rollback(self, length: int) -> None:
        """Keep the first `length` tokens of the answer: the others were rejected."""

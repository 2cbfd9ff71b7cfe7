"""What every proposer is asked and gives back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from specprefill_cli.decoding.verification import Proposal


class Proposer(Protocol):
    """Proposes the tokens that may follow the answer so far.

    entry_passes: what it must do before its first proposal, in target passes; 0 when it is ready
    token_passes: what one proposed token is assumed to cost before it was measured, in target passes
    """

    name: str
    token_passes: float

    @property
    def entry_passes(self) -> float: ...

    def propose(self, answer: Sequence[int], count: int) -> Proposal:
        """Up to `count` (at least 1) tokens behind an answer of at least one token; none where it knows of none."""
        ...

    def settle(self, length: int) -> None:
        """Forget all but the first `length` tokens of the answer: the rest was not accepted."""
        ...

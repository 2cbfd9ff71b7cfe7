"""What rank 0 orders the other ranks to do with their share of the target; `following.py` does it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specprefill_cli.prefill.scorers.base import ScoringRequest
    from specprefill_cli.settings import Settings


@dataclass(frozen=True)
class Open:
    """Load the pair, as rank 0 does."""

    settings: Settings
    draft: bool
    calibrated: bool


@dataclass(frozen=True)
class Prefill:
    """Prefill a prompt in a mode. request: without what belongs to a process; states: which kept states it may use."""

    mode: str
    settings: Settings
    request: ScoringRequest
    states: str | None


@dataclass(frozen=True)
class Read:
    """Read tokens of the answer behind the latest prefill, with logits of the last `rows`."""

    tokens: tuple[int, ...]
    rows: int


@dataclass(frozen=True)
class Forget:
    """Keep the first `length` tokens of the answer."""

    length: int


def prefill_order(request: ScoringRequest, mode: str, settings: Settings) -> Prefill:
    """The order for a request of rank 0's."""
    states = request.target_states
    sent = replace(request, pair=None, clock=None, draft_states=None, target_states=None)
    return Prefill(mode, settings, sent, states.name if states is not None else None)

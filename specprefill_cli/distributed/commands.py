"""What rank 0 orders the other ranks to do with their share of the target; `following.py` does it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specprefill_cli.prefill.request import PrefillRequest
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
    request: PrefillRequest
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


def prefill_order(request: PrefillRequest, mode: str) -> Prefill:
    """The order for a request of rank 0's."""
    prefixes = request.target_prefixes
    sent = replace(request, pair=None, clock=None, draft_prefixes=None, target_prefixes=None)
    return Prefill(mode, sent, prefixes.name if prefixes is not None else None)

"""What every mode is given and gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from specprefill_cli.models.cache import PrefillState
from specprefill_cli.prefill.fates import Plan
from specprefill_cli.prefill.scorers.base import ScoringRequest

if TYPE_CHECKING:
    from specprefill_cli.settings import Settings


@dataclass(frozen=True)
class Prefilled:
    """The target after prefill: logits [V] of the last prompt token, cache, plan, and what was seen on the way.

    importance: [n] of the document's tokens where they were scored
    draft_state: the draft's cache of exactly the prompt, where the draft ran and decoding wants it
    reused: what of earlier questions' work it stands on, in words
    draft_window: how far back the draft saw while it read the document; None: to the start, or no draft ran
    neighbours: weight of the chunks beside it in a chunk's place among the important ones
    """

    logits: Tensor
    state: PrefillState
    plan: Plan
    importance: Tensor | None = None
    warnings: tuple[str, ...] = ()
    draft_state: PrefillState | None = None
    reused: tuple[str, ...] = ()
    draft_window: int | None = None
    neighbours: float = 0.0


# What stands in for a mode's prefill, as a control of it.
Prefill = Callable[["ScoringRequest", "Settings"], Prefilled]


class Mode(Protocol):
    """A strategy of prefill: its registered name, whether it can need a draft and has a keep ratio, and the prefill itself."""

    name: str
    uses_draft: bool
    uses_keep: bool

    def prefill(self, request: ScoringRequest, settings: Settings) -> Prefilled: ...

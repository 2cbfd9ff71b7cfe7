"""Whether draft KV beat `select` at equal time to first token on a pair: what lets `--mode auto` take it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specprefill_cli.prefill.request import PrefillRequest

# The ratio of times to first token up to which they count as equal.
EQUAL_TTFT = 1.05


@dataclass(frozen=True, kw_only=True)
class DraftKvVerdict:
    """Answers of a mode with draft KV against those of `select` to the same questions.

    recompute, keep, exact_layers: the settings of the mode; keep is None for `auto`
    select_keep: keep ratio of the `select` that answered best, of those with the mode's own ratio and with the one that takes
    as long as the mode; ttft_ratio: median TTFT of the mode divided by that of `select` with the latter
    f1_delta: mean of the mode's F1 minus that of the best `select`, in percent, with its 95 % interval; n: questions
    """

    mode: str
    recompute: float
    keep: float | None
    exact_layers: int
    select_keep: float | None
    n: int
    f1_delta: float
    f1_delta_low: float
    f1_delta_high: float
    ttft_ratio: float

    @property
    def wins(self) -> bool:
        """Whether the mode answered better than `select` by more than the interval, in no more time."""
        return self.f1_delta_low > 0 and self.ttft_ratio <= EQUAL_TTFT

    def holds_for(self, request: PrefillRequest) -> bool:
        """Whether it was found with the settings of a request."""
        measured = (self.recompute, self.keep, self.exact_layers)
        return measured == (request.recompute, request.keep, request.exact_layers)

    @property
    def evidence(self) -> str:
        """What it rests on, in words."""
        interval = f"[{self.f1_delta_low:.1f}, {self.f1_delta_high:.1f}]"
        return f"F1 {self.f1_delta:+.1f} {interval} against select in at most the same time, n = {self.n}"


def stored_verdicts(description: Mapping[str, Any]) -> tuple[DraftKvVerdict, ...]:
    """The verdicts in the description of a pair's maps; calibrations before them have none."""
    return tuple(DraftKvVerdict(**values) for values in description.get("verdicts", ()))

"""The keep ratio at which a mode takes as long as another one."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specprefill_cli.answering.session import Session
from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.settings import Settings

KEEPS = tuple(step / 40 for step in range(1, 41))
PILOT_QUESTIONS = 9


@dataclass(frozen=True)
class Tuned:
    """The keep ratio chosen for a mode, its median TTFT on the pilot questions, and the TTFT to match, in seconds."""

    mode: str
    keep: float
    pilot_ttft_seconds: float
    target_ttft_seconds: float


def nearest_keep(target_seconds: float, measure: Callable[[float], float]) -> tuple[float, float]:
    """The keep ratio of `KEEPS` whose time is nearest to the target, and that time, by bisection.

    measure: keep ratio -> seconds, assumed to grow with the ratio; called once for each ratio tried
    """
    tried: dict[float, float] = {}
    low, high = 0, len(KEEPS) - 1
    while low <= high:
        middle = (low + high) // 2
        seconds = tried[KEEPS[middle]] = measure(KEEPS[middle])
        if seconds < target_seconds:
            low = middle + 1
        else:
            high = middle - 1
    return min(tried.items(), key=lambda trial: abs(trial[1] - target_seconds))


def median_ttft(session: Session, items: Sequence[Item], settings: Settings) -> float:
    """Median seconds to the first token over questions, after one unmeasured."""
    session.ask(items[0].collection, items[0].question, settings)
    streams = (session.ask(item.collection, item.question, settings) for item in items)
    return statistics.median(stream.ttft_seconds for stream in streams)


def tune(
    session: Session,
    items: Sequence[Item],
    reference: Settings,
    modes: Sequence[str],
    step: Callable[[str], None],
    timer: Callable[[Session, Sequence[Item], Settings], float] = median_ttft,
) -> dict[str, Tuned]:
    """For each mode, the keep ratio at which its TTFT on the first questions is nearest to the reference's."""
    pilots = items[:PILOT_QUESTIONS]
    step(f"timing {reference.mode}")
    target_seconds = timer(session, pilots, reference)
    tuned = {}
    for mode in modes:

        def measure(keep: float, mode: str = mode) -> float:
            step(f"timing {mode} at keep {keep:g}")
            return timer(session, pilots, reference.varied(mode=mode, keep=keep))

        keep, seconds = nearest_keep(target_seconds, measure)
        tuned[mode] = Tuned(mode, keep, seconds, target_seconds)
    return tuned

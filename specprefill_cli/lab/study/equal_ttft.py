"""Settings at equal cost: the keep ratio at which a mode is as fast as another one."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from specprefill_cli.answering.session import Session
from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.settings import Settings

# Steps of 2.5 % of the prompt: on `tiny` each costs some 5 % of the time that equal cost is about.
KEEPS = tuple(step / 40 for step in range(1, 41))
PILOTS = 9


@dataclass(frozen=True)
class Tuned:
    """The keep ratio taken for a mode, its median TTFT on the pilot questions, and the one it should come near to."""

    mode: str
    keep: float
    pilot_ttft_seconds: float
    wanted_ttft_seconds: float


def nearest_keep(
    wanted: float, measure: Callable[[float], float], keeps: Sequence[float] = KEEPS
) -> tuple[float, float]:
    """The keep ratio whose time comes nearest to `wanted` seconds, and that time.

    Bisection over `keeps`, ascending: more kept tokens take longer. measure: keep ratio -> seconds, called once for each
    ratio that is tried; both neighbours of the wanted time are.
    """
    tried: dict[float, float] = {}
    low, high = 0, len(keeps) - 1
    while low <= high:
        middle = (low + high) // 2
        seconds = tried[keeps[middle]] = measure(keeps[middle])
        if seconds < wanted:
            low = middle + 1
        else:
            high = middle - 1
    return min(tried.items(), key=lambda one: abs(one[1] - wanted))


def tune(
    session: Session,
    items: Sequence[Item],
    reference: Settings,
    modes: Sequence[str],
    step: Callable[[str], None],
    timer: Callable[[Session, Sequence[Item], Settings], float] | None = None,
) -> dict[str, Tuned]:
    """For each mode the keep ratio at which its median TTFT on the first questions is nearest to the reference's."""
    timed = timer or median_ttft
    pilots = items[:PILOTS]
    step(f"timing {reference.mode}")
    wanted = timed(session, pilots, reference)
    found = {}
    for mode in modes:

        def measure(keep: float, mode: str = mode) -> float:
            step(f"timing {mode} at keep {keep:g}")
            return timed(session, pilots, replace(reference, mode=mode, keep=keep))

        keep, seconds = nearest_keep(wanted, measure)
        found[mode] = Tuned(mode, keep, seconds, wanted)
    return found


def median_ttft(session: Session, items: Sequence[Item], settings: Settings) -> float:
    """Median seconds to the first token over questions, after one unmeasured."""
    session.ask(items[0].collection, items[0].question, settings)
    return statistics.median(session.ask(item.collection, item.question, settings).clock.ttft for item in items)

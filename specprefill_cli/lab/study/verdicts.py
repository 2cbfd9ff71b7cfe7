"""Whether draft KV beats `select` at equal time to first token on a pair, so that `--mode auto` may take it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specprefill_cli.answering.session import Session
from specprefill_cli.draft_kv.gate import DraftKvVerdict, risk_limit
from specprefill_cli.draft_kv.modes import DraftKvMode, HybridMode
from specprefill_cli.draft_kv.projection import find_map
from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.lab.evaluation.metrics import f1
from specprefill_cli.lab.evaluation.runner import ask
from specprefill_cli.lab.evaluation.statistics import mean_interval
from specprefill_cli.lab.session import short_answers
from specprefill_cli.lab.study.equal_ttft import median_ttft, tune
from specprefill_cli.prefill.registry import MODES
from specprefill_cli.settings import AUTO, Settings

SELECT = "select"


@dataclass
class Side:
    """One side of the comparison: its settings, and by question its F1 in percent and TTFT in seconds."""

    settings: Settings
    f1: list[float] = field(default_factory=list)
    ttft: list[float] = field(default_factory=list)

    def answer(self, session: Session, item: Item) -> None:
        """Ask a question and note its figures."""
        answer = ask(session, item, self.settings)
        self.f1.append(100 * f1(answer.answer, item.answers))
        self.ttft.append(answer.ttft_seconds)


def find_verdicts(
    session: Session,
    items: Sequence[Item],
    settings: Settings,
    step: Callable[[str], None],
    timer: Callable[[Session, Sequence[Item], Settings], float] = median_ttft,
) -> tuple[DraftKvVerdict, ...]:
    """A verdict for each mode with draft KV; none for one whose gate accepts nothing, whatever the prompt.

    items: questions with answers, whose prompts fit the pair; timer: seconds to the first token
    """
    settings = short_answers(settings).varied(scorer=AUTO)
    verdicts = []
    for name in (DraftKvMode.name, HybridMode.name):
        chosen = settings.varied(mode=name)
        request = session.request(items[0].collection, items[0].question, chosen)
        share = request.keep if MODES[name].uses_keep else request.settings.recompute
        if not risk_limit(request.settings.accept_risk, find_map(request, name).gate, share).refusal:
            verdicts.append(compare_with_select(session, items, chosen, step, timer))
    return tuple(verdicts)


def compare_with_select(
    session: Session,
    items: Sequence[Item],
    settings: Settings,
    step: Callable[[str], None],
    timer: Callable[[Session, Sequence[Item], Settings], float],
) -> DraftKvVerdict:
    """The verdict on a mode: against `select` with the keep ratio with which it takes as long, or with that of the settings.

    All answer in turns, and the better `select` counts: a target that answers better the less it reads would else lose to
    any mode that keeps little.
    """
    tuned = tune(session, items, settings, (SELECT,), step, timer)[SELECT]
    mode_side = Side(settings)
    as_long, own_keep = (Side(settings.varied(mode=SELECT, keep=keep)) for keep in (tuned.keep, settings.keep))
    for number, item in enumerate(items):
        step(f"{settings.mode} against select: question {number + 1:,} of {len(items):,}")
        for side in (mode_side, as_long, own_keep):
            side.answer(session, item)
    best = max((as_long, own_keep), key=lambda side: statistics.mean(side.f1))
    delta, low, high = mean_interval(
        [score - select_score for score, select_score in zip(mode_side.f1, best.f1, strict=True)]
    )
    return DraftKvVerdict(
        mode=settings.mode,
        recompute=settings.recompute,
        keep=settings.keep,
        exact_layers=settings.exact_layers,
        select_keep=best.settings.keep,
        n=len(items),
        f1_delta=round(delta, 2),
        f1_delta_low=round(low, 2),
        f1_delta_high=round(high, 2),
        ttft_ratio=round(statistics.median(mode_side.ttft) / statistics.median(as_long.ttft), 3),
    )

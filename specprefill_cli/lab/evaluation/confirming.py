"""How often full prefill confirms a provisional answer, when, and what foretells that it corrects one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from specprefill_cli.answering.session import Session
from specprefill_cli.answering.stream import AnswerStream
from specprefill_cli.errors import PromptTooLong
from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.lab.evaluation.metrics import f1
from specprefill_cli.lab.evaluation.statistics import auroc, wilson_interval
from specprefill_cli.models.adapter import items_of
from specprefill_cli.prefill.fates import Fate
from specprefill_cli.record import BASELINE, Record
from specprefill_cli.settings import Settings

DRAWS = 1_000


@dataclass(frozen=True, kw_only=True)
class Confirmed:
    """One question at one keep ratio. Times from the question on, in seconds.

    same: whether the final tokens are those of `full`; full_seconds: its whole answer; select_ttft: without confirmation
    margin: of the provisional first token's logit over the next one; mass: importance that was kept
    """

    item: str
    keep: float | None
    confirmed: bool
    same: bool
    provisional_f1: float
    final_f1: float
    ttft_seconds: float
    confirmed_seconds: float
    full_seconds: float
    confidence: float | None
    margin: float
    mass: float | None


@dataclass(frozen=True, kw_only=True)
class ConfirmedRow:
    """Figures of one keep ratio over n questions: shares and F1 in percent, medians of seconds.

    signals: by name, the AUROC of foretelling a correction with its 95 % bootstrap interval, and the number of cases
    """

    keep: float | None
    n: int
    confirmed: float
    confirmed_low: float
    confirmed_high: float
    same: int
    provisional_f1: float
    final_f1: float
    ttft_seconds: float
    confirmed_seconds: float
    full_seconds: float
    time_ratio: float
    signals: dict[str, tuple[float | None, float | None, float | None, int]]


def measure(
    session: Session,
    items: Iterable[Item],
    keeps: Sequence[float | None],
    base: Settings,
    step: Callable[[Confirmed], None],
) -> list[Confirmed]:
    """Ask every question with full prefill, and with each keep ratio confirmed; every answer starts cold.

    step: called with each outcome. Questions too long for full prefill are left out; Ctrl-C ends the run early.
    """
    outcomes: list[Confirmed] = []
    try:
        for item in items:
            try:
                full, _, _, full_seconds = asked(session, item, base.varied(mode=BASELINE, confirm=False))
            except PromptTooLong:
                continue
            for keep in keeps:
                settings = base.varied(mode="select", keep=keep, confirm=True, confirm_below=1.0)
                stream, provisional, answer, seconds = asked(session, item, settings)
                assert provisional is not None and answer.confirmed is not None, "it was confirmed or corrected"  # noqa: PT018
                best, second = stream.prefilled.logits.topk(2).values.tolist()
                outcome = Confirmed(
                    item=item.identifier,
                    keep=keep,
                    confirmed=answer.confirmed,
                    same=stream.tokens == full.tokens,
                    provisional_f1=f1(provisional.answer, item.answers),
                    final_f1=f1(answer.answer, item.answers),
                    ttft_seconds=answer.ttft_seconds,
                    confirmed_seconds=seconds,
                    full_seconds=full_seconds,
                    confidence=provisional.confidence,
                    margin=best - second,
                    mass=kept_mass(stream),
                )
                outcomes.append(outcome)
                step(outcome)
    except KeyboardInterrupt:
        pass
    return outcomes


def asked(session: Session, item: Item, settings: Settings) -> tuple[AnswerStream, Record | None, Record, float]:
    """An answer's stream, its provisional record where it has one, its record, and the seconds of all of it."""
    session.warm_up(settings)
    began = time.perf_counter()
    stream = session.ask(item.collection, item.question, settings)
    records = [found for found in items_of(stream.steps()) if isinstance(found, Record)]
    seconds = time.perf_counter() - began
    return stream, records[0] if records else None, stream.result(), seconds


def kept_mass(stream: AnswerStream) -> float | None:
    """The share of the document's importance in chunks that the target computed; None where nothing was scored."""
    importance, plan = stream.prefilled.importance, stream.prefilled.plan
    if importance is None or not float(importance.sum()):
        return None
    first = plan.document[0]
    kept = sum(
        float(importance[span.start - first : span.end - first].sum())
        for span in plan.spans
        if span.fate is Fate.RECOMPUTE
    )
    return kept / float(importance.sum())


def figures(outcomes: Sequence[Confirmed]) -> list[ConfirmedRow]:
    """A row for each keep ratio."""
    keeps = list(dict.fromkeys(outcome.keep for outcome in outcomes))
    return [row(keep, [outcome for outcome in outcomes if outcome.keep == keep]) for keep in keeps]


def row(keep: float | None, cases: Sequence[Confirmed]) -> ConfirmedRow:
    """The figures of one keep ratio."""
    confirmed = sum(case.confirmed for case in cases)
    low, high = wilson_interval(confirmed, len(cases))
    median = statistics.median
    return ConfirmedRow(
        keep=keep,
        n=len(cases),
        confirmed=100 * confirmed / len(cases),
        confirmed_low=100 * low,
        confirmed_high=100 * high,
        same=sum(case.same for case in cases),
        provisional_f1=100 * statistics.fmean(case.provisional_f1 for case in cases),
        final_f1=100 * statistics.fmean(case.final_f1 for case in cases),
        ttft_seconds=median(case.ttft_seconds for case in cases),
        confirmed_seconds=median(case.confirmed_seconds for case in cases),
        full_seconds=median(case.full_seconds for case in cases),
        time_ratio=median(case.confirmed_seconds / case.full_seconds for case in cases),
        signals={name: foretelling(name, cases) for name in ("confidence", "margin", "mass")},
    )


def foretelling(name: str, cases: Sequence[Confirmed]) -> tuple[float | None, float | None, float | None, int]:
    """AUROC with which a low signal foretells a correction, its bootstrap interval, and the cases that have the signal."""
    known = [case for case in cases if getattr(case, name) is not None]
    scores = np.array([-getattr(case, name) for case in known])
    corrected = np.array([not case.confirmed for case in known])
    value = auroc(scores, corrected) if known else None
    if value is None:
        return None, None, None, len(known)
    generator = np.random.default_rng(0)
    draws = (generator.integers(0, len(known), len(known)) for _ in range(DRAWS))
    drawn = [found for draw in draws if (found := auroc(scores[draw], corrected[draw])) is not None]
    low, high = np.quantile(drawn, (0.025, 0.975))
    return value, float(low), float(high), len(known)

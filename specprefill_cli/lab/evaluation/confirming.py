"""How often and when full prefill confirms a provisional answer, and whether confidence predicts a correction."""

import statistics
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from specprefill_cli.answering.confirmation import Confirmation
from specprefill_cli.answering.session import Session
from specprefill_cli.answering.stream import AnswerStream
from specprefill_cli.errors import PromptTooLong
from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.lab.evaluation.metrics import f1
from specprefill_cli.lab.evaluation.runner import LeftOut
from specprefill_cli.lab.evaluation.statistics import auroc_figures, share_figures
from specprefill_cli.lab.tables import Columns, Row, duration, figure, keep_text
from specprefill_cli.models.running.adapter import items_of
from specprefill_cli.record import BASELINE, Record
from specprefill_cli.settings import Settings

COLUMNS: Columns = {
    "keep": keep_text,
    "n": figure("n"),
    "confirmed, % [95 %]": figure("confirmed", ".1f", interval=True),
    "final = full": lambda row: f"{row['same']} of {row['n']}",
    "F1 provisional": figure("provisional_f1", ".1f"),
    "final": figure("final_f1", ".1f"),
    "TTFT": duration("ttft_seconds"),
    "confirmed after": duration("confirmed_seconds"),
    "full": duration("full_seconds"),
    "x full": figure("time_ratio", ".2f"),
    "AUROC of confidence": figure("auroc", ".2f", interval=True),
}


def measure(
    session: Session, items: Iterable[Item], keeps: Sequence[float | None], base: Settings, step: Callable[[Row], None]
) -> tuple[list[Row], list[LeftOut], bool]:
    """Ask every question with full prefill, and with each keep ratio and confirmation; every answer starts cold.

    step: called with each outcome

    Returns the outcomes, the questions that are too long, and whether Ctrl-C ended the run early.
    """
    outcomes: list[Row] = []
    left_out: list[LeftOut] = []
    for item in items:
        try:
            full, _, full_seconds = time_answer(session, item, base.varied(mode=BASELINE, confirm=False))
            confirmations = {keep: time_answer(session, item, selecting(base, keep)) for keep in keeps}
        except PromptTooLong as error:
            left_out.append((item, error))
            continue
        except KeyboardInterrupt:
            return outcomes, left_out, True
        for keep, confirmation in confirmations.items():
            outcome = {"item": item.identifier, "keep": keep}
            outcome |= confirmed_outcome(item, full, full_seconds, *confirmation)
            outcomes.append(outcome)
            step(outcome)
    return outcomes, left_out, False


def selecting(base: Settings, keep: float | None) -> Settings:
    """The base settings with the mode `select`, a keep ratio, and confirmation."""
    return base.varied(mode="select", keep=keep, confirm=True)


def time_answer(session: Session, item: Item, settings: Settings) -> tuple[AnswerStream, Record | None, float]:
    """Answer a question; return the finished stream, the provisional record if any, and the total seconds.

    Raises KeyboardInterrupt where Ctrl-C cut the answer short.
    """
    session.warm_up(settings)
    started = time.perf_counter()
    stream = session.ask(item.collection, item.question, settings)
    provisional = None
    for event in items_of(stream.steps()):
        if isinstance(event, Confirmation):
            provisional = stream.result()
    seconds = time.perf_counter() - started
    if stream.interrupted:
        raise KeyboardInterrupt
    return stream, provisional, seconds


def confirmed_outcome(
    item: Item,
    full: AnswerStream,
    full_seconds: float,
    stream: AnswerStream,
    provisional: Record | None,
    seconds: float,
) -> Row:
    """The outcome of a question at a keep ratio. Times in seconds from the question on.

    same: whether the final tokens are those of `full`; full_seconds: of the whole answer of `full`; ttft_seconds: of the
        provisional answer
    """
    answer = stream.result()
    assert provisional is not None
    assert answer.confirmed is not None
    return {
        "confirmed": answer.confirmed,
        "same": stream.tokens == full.tokens,
        "provisional_f1": f1(provisional.answer, item.answers),
        "final_f1": f1(answer.answer, item.answers),
        "ttft_seconds": answer.ttft_seconds,
        "confirmed_seconds": seconds,
        "full_seconds": full_seconds,
        "confidence": provisional.confidence,
    }


def figures(outcomes: Sequence[Row]) -> list[Row]:
    """A row for each keep ratio."""
    keeps = list(dict.fromkeys(outcome["keep"] for outcome in outcomes))
    return [row_of(keep, [outcome for outcome in outcomes if outcome["keep"] == keep]) for keep in keeps]


def row_of(keep: float | None, cases: Sequence[Row]) -> Row:
    """The figures of a keep ratio over n questions: shares and F1 in percent, medians of seconds.

    auroc: of the confidence as a predictor of a correction, with its 95 % bootstrap interval; None where unknown
    """
    return {
        "keep": keep,
        "n": len(cases),
        **share_figures("confirmed", [case["confirmed"] for case in cases]),
        "same": sum(case["same"] for case in cases),
        **{key: 100 * statistics.fmean(case[key] for case in cases) for key in ("provisional_f1", "final_f1")},
        **{
            key: statistics.median(case[key] for case in cases)
            for key in ("ttft_seconds", "confirmed_seconds", "full_seconds")
        },
        "time_ratio": statistics.median(case["confirmed_seconds"] / case["full_seconds"] for case in cases),
        **foretelling(cases),
    }


def foretelling(cases: Sequence[Row]) -> dict[str, float | None]:
    """AUROC with which a low confidence predicts a correction, and its bootstrap interval."""
    rated = [case for case in cases if case["confidence"] is not None]
    scores = np.array([-case["confidence"] for case in rated])
    corrected = np.array([not case["confirmed"] for case in rated])
    return auroc_figures("auroc", scores, corrected)

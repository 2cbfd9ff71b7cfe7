"""The figures of a study over all its questions."""

from collections.abc import Sequence
from statistics import fmean, median

import numpy as np

from specprefill_cli.lab.evaluation.statistics import auroc_figures, mean_figures, share_figures
from specprefill_cli.lab.study.conditions import RECOMPUTED
from specprefill_cli.lab.study.question import ANSWER_TOKENS, FULL
from specprefill_cli.lab.tables import Row

SELECT = "select 0."
# Tokens of an answer after which its drift is told, if some answers are longer than the default.
DRIFT_TOKENS = (1, 4, 16, 64)


def summary(rows: Sequence[Row]) -> Row:
    """The study's figures by name. rows: one a question, as `study_question` returns them."""
    names = list(rows[0]["results"])
    curve = [name for name in names if name.startswith(SELECT) and name[len(SELECT) :].isdecimal()]
    return {
        "questions": len(rows),
        "prompt_tokens": median(row["tokens"] for row in rows),
        "conditions": [condition_row(rows, name, [*curve, FULL]) for name in names],
        "choosers": [chooser_row(rows, name, keep) for name, kept in rows[0]["kept"].items() for keep in kept],
        "signals": [signal_row(rows, name) for name in rows[0]["signals"]],
        "drift": drift_rows(rows),
        "errors": {
            part: [fmean(layer) for layer in zip(*(row["errors"][part] for row in rows), strict=True)]
            for part in rows[0]["errors"]
        },
    }


def condition_row(rows: Sequence[Row], name: str, curve: Sequence[str]) -> Row:
    """The figures of a condition.

    kl: of the first token, kl_answer: mean over the answer's tokens, in nats; changed: percentage of changed answers
    f1, f1_delta: in percent, and its paired difference from `full`; seconds: mean time, and its ratio to that of `full`
    kl_select, f1_select: paired differences from `select` at equal time, between the two nearest keep ratios
    """
    results = [row["results"][name] for row in rows]
    figures: Row = {"name": name, "n": len(rows), "kl_median": median(result["kl"] for result in results)}
    figures |= mean_figures("kl", [result["kl"] for result in results])
    figures |= mean_figures("kl_answer", [result["kl_answer"] for result in results])
    figures |= share_figures("changed", [result["changed"] for result in results])
    timed = results if "seconds" in results[0] else []
    figures["seconds"] = fmean(result["seconds"] for result in timed) if timed else None
    figures["time_ratio"] = figures["seconds"] / mean_of(rows, FULL, "seconds") if timed else None
    for key in ("kl", "f1"):
        at_equal_time = select_at(rows, curve, figures["seconds"], key) if timed else []
        differences = [result[key] - other for result, other in zip(timed, at_equal_time, strict=True)]
        figures |= mean_figures(f"{key}_select", differences)
    figures |= mean_figures("f1", [result["f1"] for result in timed])
    full = [row["results"][FULL]["f1"] for row in rows] if timed else []
    return figures | mean_figures("f1_delta", [ours["f1"] - theirs for ours, theirs in zip(timed, full, strict=True)])


def drift_rows(rows: Sequence[Row]) -> list[Row]:
    """How far answers drift whose next token after `tokens` - 1 is known, by condition that can be timed; none if all are short.

    diverged: percentage that differ from `full` by then; kl: of the token there, forced on the answer of `full`, in nats
    """
    drifts, results = [], [row["results"] for row in rows]
    for name in results[0]:
        measured = [result[name] for result in results if "kl_tokens" in result[name] and "seconds" in result[name]]
        if all(len(drifted["kl_tokens"]) <= ANSWER_TOKENS + 1 for drifted in measured):
            continue
        for tokens in DRIFT_TOKENS:
            if long_enough := [drifted for drifted in measured if len(drifted["kl_tokens"]) >= tokens]:
                figures = share_figures("diverged", [drifted["same"] < tokens for drifted in long_enough])
                figures |= mean_figures("kl", [drifted["kl_tokens"][tokens - 1] for drifted in long_enough])
                drifts.append({"name": name, "tokens": tokens, "n": len(long_enough), **figures})
    return drifts


def chooser_row(rows: Sequence[Row], name: str, keep: str) -> Row:
    """How often the text that a scorer keeps holds the answer, in percent; None where no answer stands in its document."""
    known = [kept for row in rows if (kept := row["kept"][name][keep]) is not None]
    return {"name": name, "keep": float(keep), "n": len(known), **share_figures("kept", known)}


def mean_of(rows: Sequence[Row], name: str, key: str) -> float:
    """The mean of a figure of a condition."""
    return fmean(row["results"][name][key] for row in rows)


def select_at(rows: Sequence[Row], curve: Sequence[str], seconds: float, key: str) -> list[float]:
    """A figure of `select` for each question at a mean time, linearly between the keep ratios.

    curve: conditions; before the quickest and after the slowest, their own figures
    """
    curve = sorted(curve, key=lambda name: mean_of(rows, name, "seconds"))
    times = [mean_of(rows, name, "seconds") for name in curve]
    return [float(np.interp(seconds, times, [row["results"][name][key] for name in curve])) for row in rows]


def signal_row(rows: Sequence[Row], name: str) -> Row:
    """How well a signal separates changed answers of draft KV from the others: AUROC with its bootstrap interval."""
    values = np.array([row["signals"][name] for row in rows])
    changed = np.array([row["results"][RECOMPUTED]["changed"] for row in rows])
    return {"name": name, "n": len(rows), "changed": int(changed.sum()), **auroc_figures("auroc", values, changed)}

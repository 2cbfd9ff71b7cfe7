"""The study's sections on long answers: what the remaining risk tells, and how errors compound."""

from __future__ import annotations

from functools import partial
from typing import Any

from specprefill_cli.lab.plots import Series, line_plot
from specprefill_cli.lab.study.section import Figures, Plots, Section, figure
from specprefill_cli.lab.tables import Columns

GATE_SIGNALS = {
    "kv_error": "error of keys and values",
    "attention_output": "error of the attention output",
    "hidden_state": "1 - cosine of hidden states",
}
POOLED: Columns = {
    "signal": lambda row: GATE_SIGNALS.get(row["signal"], row["signal"]),
    "layers": lambda row: row["layers"],
    "AUROC: first token changed": lambda row: area(row["first_token"]),
    "AUROC: answer changed": lambda row: area(row["answer"]),
    "within a budget: first token": lambda row: figure(row["first_token"]["within"]),
    "within a budget: answer": lambda row: figure(row["answer"]["within"]),
}
DRIFT: Columns = {
    "cache": lambda row: row["name"],
    "KL a token [95 %]": lambda row: figure(row["kl_mean"], ".3f", row["kl_low"], row["kl_high"]),
    "answers diverged after 1, 4, 16, 64 tokens": lambda row: ", ".join(
        f"{p:.0%}" for p in row["parted_after"].values()
    ),
    "answer changed": lambda row: f"{row['answer_changed']:.0%}",
}
# What the plot of drift shows, in this order.
DRIFT_LINES = (
    "mapped only",
    "same tokens, rest dropped",
    "recompute 0.05",
    "recompute 0.15",
    "recompute 0.5",
    "wrong document",
)


def pooled_section(rows: list[dict[str, Any]]) -> Section:
    """What the risk that remains tells about an answer, where both outcomes occur."""
    happened = {event: rows[0][event]["happened"] for event in ("first_token", "answer")}
    findings = [
        f"Budgets of 5 to 50 % pooled: the first token changes in {happened['first_token']:.0%} of the cases, the answer in "
        f"{happened['answer']:.0%}. AUROC of the remaining risk, where 0.5 is chance, with a 95 % interval over questions. "
        "Within a budget, the budget itself tells nothing."
    ]
    return Section("Does the remaining risk tell a changed answer?", findings, {}, [Figures("pooled", POOLED, rows)])


def drift_section(rows: list[dict[str, Any]]) -> Section:
    """KL at every token of a long answer, and where answers part."""
    tokens = len(rows[0]["kl_by_token"])
    findings = [
        f"KL(full || cache) at each of {tokens} tokens that `full` would go on with, forced on every cache; an answer has "
        "diverged where a greedy choice differs. Stop tokens are passed over."
    ]
    by_name = {row["name"]: row for row in rows}
    lines = [Series(name, list(enumerate(by_name[name]["kl_by_token"], 1))) for name in DRIFT_LINES if name in by_name]
    plots: Plots = {"kl_by_token": partial(line_plot, "Drift from full prefill", "token", "mean KL, nats", lines)}
    return Section("Do errors compound in a long answer?", findings, plots, [Figures("drift", DRIFT, rows)])


def area(event: dict[str, Any]) -> str:
    """An AUROC with its interval."""
    return figure(event["pooled"], ".2f", *(event["interval"] or ()))

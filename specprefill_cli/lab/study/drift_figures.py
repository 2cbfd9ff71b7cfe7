"""The study's section on long answers: how errors compound."""

from __future__ import annotations

from functools import partial
from typing import Any

from specprefill_cli.lab.plots import Series, line_plot
from specprefill_cli.lab.study.section import Figures, Plots, Section, figure
from specprefill_cli.lab.tables import Columns

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

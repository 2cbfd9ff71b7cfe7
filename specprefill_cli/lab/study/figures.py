"""Renders the study's record: findings in words and tables for a terminal, and plots."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.console import Group, RenderableType

from specprefill_cli.lab.evaluation.statistics import FEWEST_QUESTIONS, TOO_FEW
from specprefill_cli.lab.plots import Series, line_plot
from specprefill_cli.lab.study.measurements import MAPPED_ONLY, REST_DROPPED
from specprefill_cli.lab.tables import Columns, Row, cells, duration, figure, rich_table
from specprefill_cli.reporting.text import plain

figure_or_dash = partial(figure, unknown="-")
FIRST_TOKEN: Columns = {
    "cache": figure("name"),
    "median KL": figure_or_dash("kl_median", ".3f"),
    "mean KL": figure_or_dash("kl_mean", ".3f"),
    "first token kept": figure("same_first_token", ".0%"),
}
DRIFT: Columns = {
    "cache": figure("name"),
    "KL a token [95 %]": lambda row: f"{row['kl_mean']:.3f} [{row['kl_low']:.3f}, {row['kl_high']:.3f}]",
    "answers diverged after 1, 4, 16, 64 tokens": lambda row: ", ".join(
        f"{share:.0%}" for share in row["parted_after"].values()
    ),
    "answer changed": figure("answer_changed", ".0%"),
}
# The lines of the drift plot, in order.
DRIFT_LINES = (MAPPED_ONLY, REST_DROPPED, "recompute 0.05", "recompute 0.15", "recompute 0.5", "wrong document")
COST: Columns = {
    "condition": lambda row: row["name"] if row["keep"] is None else f"{row['name']}, keep {row['keep']:g}",
    "n": figure("n"),
    "F1 [95 %]": figure("f1", ".1f", interval=True),
    "TTFT": duration("ttft_seconds"),
    "x reference": figure("ttft_ratio", ".2f"),
    "equal": lambda row: "yes" if row["equal_ttft"] else "no",
    "first-token KL": figure_or_dash("first_token_kl", ".3f"),
    "gap recovered": figure_or_dash("gap_recovered", ".2f"),
    "same as full": figure("same_answer", ".0%"),
}
DUELS: Columns = {
    "minus F1 of": figure("against"),
    "difference [95 %]": lambda row: f"{row['difference']:+.1f} [{row['low']:+.1f}, {row['high']:+.1f}]",
    "verdict": figure("verdict"),
}
COST_TITLE = "What does draft KV win at equal TTFT?"


# A table: its name, its columns and its rows.
Figures = tuple[str, Columns, Sequence[Row]]


@dataclass(frozen=True)
class Section:
    """A question of the study: findings in words, functions that draw SVG by file name, and tables."""

    title: str
    findings: Sequence[str]
    plots: Mapping[str, Callable[[], str]]
    tables: Sequence[Figures] = ()


def sections(record: dict[str, Any]) -> list[Section]:
    """All sections for which the record has figures."""
    cost = record.get("equal_cost")
    return [
        layer_section(record),
        repair_section(record),
        *([drift_section(record["drift"])] if record.get("drift") else []),
        cost_section(cost) if cost else Section(COST_TITLE, ["Not measured: needs answers (`study --answers N`)."], {}),
    ]


def layer_section(record: dict[str, Any]) -> Section:
    """Error by layer."""
    findings = [
        f"{record['questions']:,} questions. With mapped KV alone the first token changed in "
        f"{record['first_token_changed']:.0%} of them"
        + (f", the answer in {record['answer_changed']:.0%}." if record["answer_changed"] is not None else "."),
        "Squared error of mapped KV relative to the exact KV. The first layer's depends on the tokens alone and is exact.",
    ]
    lines = [
        Series(part, [(layer, error) for layer, error in enumerate(errors) if error is not None])
        for part, errors in record["true_error_by_layer"].items()
    ]
    plot = partial(line_plot, "True error by layer", "target layer", "relative error", lines)
    return Section("Which layers are mapped well?", findings, {"error_by_layer": plot})


def repair_section(record: dict[str, Any]) -> Section:
    """KL by recompute budget, spent on the riskiest or on random chunks, and the controls."""
    budgets = record["first_token_by_budget"]
    first, *_, last = [row for row in budgets if row["chosen_by"] == "risk"]
    findings = [
        f"Median KL of the first token from full prefill: {first['kl_median']:.3f} with checkpoint tokens alone, "
        f"{last['kl_median']:.3f} with {last['recompute']:.0%} of the prompt recomputed.",
        "Draft KV is worth something where 'mapped only' has a lower KL than 'zeros' and 'wrong document', and risk chooses "
        "well where 'recompute' has a lower KL than the same 'at random'.",
    ]
    if record["questions"] < FEWEST_QUESTIONS:
        findings.append(f"No verdicts: {TOO_FEW}.")
    rows = [{"name": name, **variant} for name, variant in record["variants"].items()]
    return Section(
        "Does recomputing repair it?",
        findings,
        {"kl_by_budget": budget_plot(budgets)},
        [("first token", FIRST_TOKEN, rows)],
    )


def budget_plot(rows: Sequence[Row]) -> Callable[[], str]:
    """Plot KL over budgets, spent on the riskiest or on random chunks; each line includes the budget 0."""
    series = []
    for chosen_by, name in (("risk", "riskiest chunks"), ("random", "random chunks")):
        by_budget = {row["recompute"]: row for row in rows if row["chosen_by"] == chosen_by or not row["recompute"]}
        series.append(Series(name, [(budget, row["kl_median"]) for budget, row in sorted(by_budget.items())]))
    title, x_label, y_label = "KL by recompute budget", "ratio of the prompt recomputed", "median KL, nats"
    return partial(line_plot, title, x_label, y_label, series, x_percent=True)


def drift_section(rows: Sequence[Row]) -> Section:
    """KL at every token of a long answer, and where answers diverge."""
    findings = [
        f"KL(full || cache) at each of {len(rows[0]['kl_by_token'])} tokens that `full` would go on with, forced on every "
        "cache; an answer has diverged where a greedy choice differs. Stop tokens are passed over."
    ]
    by_name = {row["name"]: row for row in rows}
    lines = [Series(name, list(enumerate(by_name[name]["kl_by_token"], 1))) for name in DRIFT_LINES if name in by_name]
    plots = {"kl_by_token": partial(line_plot, "Drift from full prefill", "token", "mean KL, nats", lines)}
    return Section("Do errors compound in a long answer?", findings, plots, [("drift", DRIFT, rows)])


def cost_section(cost: dict[str, Any]) -> Section:
    """The table at equal time to first token, and the paired differences of draft KV."""
    reference, tolerance = cost["reference"], cost["tolerance"]
    findings = [
        f"The reference is {reference}; an equal median TTFT is within {tolerance:.0%} of its own. The keep ratios come "
        "nearest to it on the pilot questions. Controls are timed with all that they do: 'same tokens, rest dropped' maps "
        "and checks too, to find out which tokens."
    ]
    tables = [("answers", COST, cost["rows"]), (f"F1 of {reference}", DUELS, cost["duels"])]
    return Section(COST_TITLE, findings, {}, tables)


def finite(value: Any) -> Any:
    """Replace numbers that JSON cannot hold by None, and tuples by lists."""
    return json.loads(json.dumps(value), parse_constant=lambda _name: None)


def study_plots(record: dict[str, Any]) -> dict[str, str]:
    """Every plot as SVG, by file name without suffix."""
    return {name: draw() for section in sections(record) for name, draw in section.plots.items()}


def study_view(record: dict[str, Any]) -> Group:
    """Findings and tables of all sections, for a terminal."""
    parts: list[RenderableType] = []
    for section in sections(record):
        parts += [plain(section.title, "bold"), *map(plain, section.findings)]
        parts += [rich_table(list(columns), cells(rows, columns), name) for name, columns, rows in section.tables]
    return Group(*parts)

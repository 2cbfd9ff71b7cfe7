"""Modes side by side: a table with a column for each, and one JSON object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table

from specprefill_cli.record import SCHEMA
from specprefill_cli.reporting.evidence import passages_view
from specprefill_cli.reporting.html import PageResult, answer_result
from specprefill_cli.reporting.safe import plain
from specprefill_cli.reporting.table import answer_facts, present

if TYPE_CHECKING:
    from specprefill_cli.answering.comparison import ModeAnswer

EMPTY = "-"
# Labels of figures that all modes share.
SHARED = ("pair", "prompt", "start-up", "peak memory")
# In place of the answer of a mode that the prompt is too long for.
DOES_NOT_FIT = "does not fit"
# Modes by name, with the reason.
Misfits = Mapping[str, str]
NONE: Misfits = MappingProxyType({})


def comparison_view(compared: Sequence[ModeAnswer], misfits: Misfits = NONE) -> Group:
    """The table of modes, and below it the passages of the first mode that scored the documents, else of the first."""
    scored = [column.answer for column in compared if column.answer.scorer is not None]
    answers = [*scored, *(column.answer for column in compared)]
    return Group(comparison_table(compared, misfits), *map(passages_view, answers[:1]))


def comparison_table(compared: Sequence[ModeAnswer], misfits: Misfits = NONE) -> Table:
    """Build a table with a row for each figure that any mode has, and a column for each mode; misfits come last."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    for name in (*(column.asked for column in compared), *misfits):
        table.add_column(plain(name), overflow="fold", ratio=1)
    columns = [figures(column) for column in compared]
    columns += [{"answer": DOES_NOT_FIT, "warning": reason} for reason in misfits.values()]
    for label in columns[0] if columns else ():
        values = [column.get(label) for column in columns]
        if any(values):
            table.add_row(label, *(plain(value or EMPTY) for value in values))
    return table


def figures(compared: ModeAnswer) -> dict[str, str | None]:
    """Return one mode's figures by label; None or an empty text for those that it does not have."""
    answer = compared.answer
    facts = {label: value for label, value in answer_facts(answer).items() if label not in SHARED}
    own = {"answer": answer.answer or "(nothing)", **differences(compared)}
    return {**own, **facts, "warning": "; ".join(answer.warnings)}


def differences(compared: ModeAnswer) -> dict[str, str | None]:
    """Return what distinguishes one mode's answer from that of `full`, by label; None where `full` did not run."""
    return {
        "speedup": figure(compared.speedup, "{:.2f}x"),
        "first-token KL": figure(compared.first_token_kl, "{:.4f} nats"),
        "agreement": figure(compared.agreement, "{:.2f}"),
    }


def figure(value: float | None, form: str) -> str | None:
    """Format a figure that may not have been measured."""
    return None if value is None else form.format(value)


def comparison_results(compared: Sequence[ModeAnswer], misfits: Misfits = NONE) -> list[PageResult]:
    """Return the modes as the page shows them: each answer, with its differences from that of `full` first."""
    results = []
    for row in compared:
        result = answer_result(row.answer, row.cells)
        results.append(replace(result, facts=[*present(differences(row)), *result.facts]))
    results += [
        PageResult(
            mode=mode, reason=DOES_NOT_FIT, answer=None, facts=(), phases={}, citations=(), warnings=[why], cells=()
        )
        for mode, why in misfits.items()
    ]
    return results


def comparison_record(question: str, compared: Sequence[ModeAnswer], misfits: Misfits = NONE) -> dict[str, Any]:
    """Return the comparison as JSON values: rows as `ask --json` has them, with their differences from `full`.

    Under `does_not_fit` are the modes without an answer, with the reason.
    """
    differences = ("asked", "speedup", "first_token_kl", "agreement")
    rows = [row.answer.to_json() | {name: getattr(row, name) for name in differences} for row in compared]
    return {"schema": SCHEMA, "question": question, "rows": rows, "does_not_fit": dict(misfits)}

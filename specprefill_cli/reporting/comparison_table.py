"""Modes side by side: a table with a column for each."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table

from specprefill_cli.record import Comparison, ModeAnswer
from specprefill_cli.reporting.evidence import passages_view
from specprefill_cli.reporting.safe import plain
from specprefill_cli.reporting.table import answer_facts, difference_facts, plain_table

# Labels of figures that all modes share.
SHARED = ("pair", "prompt", "start-up", "peak memory")


def comparison_view(comparison: Comparison) -> Group:
    """The table of modes, and below it the passages of the first mode that scored the documents, else of the first."""
    records = [column.answer for column in comparison.answers]
    scored = [record for record in records if record.scorer is not None]
    return Group(comparison_table(comparison), *map(passages_view, (scored or records)[:1]))


def comparison_table(comparison: Comparison) -> Table:
    """Build a table with a row for each figure that any mode has, and a column for each mode; misfits come last."""
    table = plain_table("")
    for mode in (*(column.asked for column in comparison.answers), *comparison.misfits):
        table.add_column(plain(mode), overflow="fold", ratio=1)
    columns = [column_facts(column) for column in comparison.answers]
    columns += [{"answer": "does not fit", "warning": reason} for reason in comparison.misfits.values()]
    for label in columns[0] if columns else ():
        values = [column.get(label) for column in columns]
        if any(values):
            table.add_row(label, *(plain(value or "-") for value in values))
    return table


def column_facts(column: ModeAnswer) -> dict[str, str | None]:
    """Return one mode's figures by label; None or an empty text for those that it does not have."""
    answer = column.answer
    facts = {label: value for label, value in answer_facts(answer).items() if label not in SHARED}
    return {
        "answer": answer.answer or "(nothing)",
        **difference_facts(column),
        **facts,
        "warning": "; ".join(answer.warnings),
    }

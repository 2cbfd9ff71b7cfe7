"""The report of the check, in Markdown."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from specprefill_cli.lab.gpu_check.steps import StepResult
from specprefill_cli.lab.tables import markdown, mebibytes

OVERVIEW = {
    "step": lambda result: result.name,
    "result": lambda result: cell_text(result.state),
    "seconds": lambda result: f"{result.seconds:,.0f}",
    "limit": lambda result: f"{result.limit_seconds:,.0f}",
}


def report(title: str, results: Sequence[StepResult], steps: int) -> str:
    """The results so far: an overview, then the figures of each step, or its last output where it failed.

    steps: how many there are
    """
    pending = f"\n{len(results)} of {steps} steps have ended.\n" if len(results) < steps else ""
    return "\n".join([f"# {title}\n{pending}", markdown(results, OVERVIEW), *map(section, results)])


def section(result: StepResult) -> str:
    """One step: its command, and its figures or its output."""
    parts = [f"## {result.name}\n"]
    if not result.state.startswith("skipped"):
        parts.append(f"`python {shlex.join(result.arguments)}`\n")
    if result.state != "ok" or not result.rows:
        # A fence longer than any that the output holds.
        parts.append(f"{result.state}\n" + (f"\n``````text\n{result.output}\n``````\n" if result.output else ""))
    if result.rows:
        parts.append(markdown(result.rows, columns_of(result.rows)))
    return "\n".join(parts)


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A column for every key of the rows but those of lists, and those only that hold anything."""
    names = dict.fromkeys(name for row in rows for name, value in row.items() if not isinstance(value, list))
    used = [name for name in names if any(row.get(name) not in (None, {}) for row in rows)]
    return {name: lambda row, name=name: named_text(name, row.get(name)) for name in used}


def named_text(name: str, value: Any) -> str:
    """A value in a Markdown table, with a unit where its name has one that is hard to read."""
    return mebibytes(value) if name.endswith("_bytes") else cell_text(value)


def cell_text(value: Any) -> str:
    """A value in a Markdown table: short, on one line, and without the column's sign."""
    if value is None:
        return ""
    if isinstance(value, dict):
        return ", ".join(f"{name} {cell_text(part)}" for name, part in value.items())
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return " ".join(str(value).replace("|", "/").split())

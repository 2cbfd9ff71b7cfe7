"""The report of the check, in Markdown."""

import shlex
from collections.abc import Sequence
from functools import partial
from typing import Any

from specprefill_cli.lab.tables import Columns, Row, figure, markdown, mebibytes

OVERVIEW: Columns = {
    "step": figure("name"),
    "result": lambda result: cell_text(result["state"]),
    "seconds": figure("seconds", ",.0f"),
    "limit": figure("limit_seconds", ",.0f"),
}


def report(title: str, results: Sequence[Row], steps: int) -> str:
    """The results so far: an overview, then the figures of each step, or the end of its output if it failed.

    steps: the total number of steps
    """
    pending = f"\n{len(results)} of {steps} steps have ended.\n" if len(results) < steps else ""
    return "\n".join([f"# {title}\n{pending}", markdown(results, OVERVIEW), *map(section, results)])


def section(result: Row) -> str:
    """The section of a step: its command, and its figures or its output."""
    paragraphs, rows, output = [f"## {result['name']}\n"], result["rows"], result["output"]
    if not result["state"].startswith("skipped"):
        paragraphs.append(f"`python {shlex.join(result['arguments'])}`\n")
    if result["state"] != "ok" or not rows:
        # Use a longer fence than any in the output.
        paragraphs.append(f"{result['state']}\n" + (f"\n``````text\n{output}\n``````\n" if output else ""))
    if rows:
        paragraphs.append(markdown(rows, columns_of(rows)))
    return "\n".join(paragraphs)


def columns_of(rows: Sequence[Row]) -> Columns:
    """A column for every key of the rows, except keys of lists and keys without values."""
    names = dict.fromkeys(name for row in rows for name, value in row.items() if value not in (None, {}))
    lists = {name for row in rows for name, value in row.items() if isinstance(value, list)}
    return {name: partial(named_text, name) for name in names if name not in lists}


def named_text(name: str, row: Row) -> str:
    """A value of a row; bytes are converted to MiB."""
    return mebibytes(row.get(name)) if name.endswith("_bytes") else cell_text(row.get(name))


def cell_text(value: Any) -> str:
    """Format a value for a Markdown table: short, on a single line, and without `|`."""
    if value is None:
        return ""
    if isinstance(value, dict):
        return ", ".join(f"{name} {cell_text(part)}" for name, part in value.items())
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return " ".join(str(value).replace("|", "/").split())

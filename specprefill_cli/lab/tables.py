"""Tables of figures, for a terminal, as Markdown and as JSON.

A row of figures is a dict with the keys of the JSON; a column formats its cell.
"""

import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.table import Table

from specprefill_cli import __version__
from specprefill_cli.cli.console import Notes, console, print_json
from specprefill_cli.files import write_whole
from specprefill_cli.prefill.registry import MODES
from specprefill_cli.reporting.table import seconds
from specprefill_cli.reporting.text import plain
from specprefill_cli.settings import AUTO

Row = dict[str, Any]
Cell = Callable[[Row], str]
# The text of a row's cell by column.
Columns = Mapping[str, Cell]
# The keys of the quartiles of the time to first token; the middle one is the median.
TTFT_KEYS = ("ttft_low", "ttft_seconds", "ttft_high")


def figure(key: str, form: str = "", interval: bool = False, unknown: str = "") -> Cell:
    """A column of formatted values, with the row's interval if `interval` is set; `unknown` is shown for None."""

    def cell(row: Row) -> str:
        if row[key] is None:
            return unknown
        bounds = [format(row[f"{key}_{end}"], form) for end in ("low", "high")] if interval else []
        return format(row[key], form) + (f" [{', '.join(bounds)}]" if bounds else "")

    return cell


def duration(key: str) -> Cell:
    """A column of seconds."""
    return lambda row: seconds(row[key])


def memory(key: str) -> Cell:
    """A column of bytes in MiB; empty for None."""
    return lambda row: mebibytes(row[key])


def mebibytes(count: int | None) -> str:
    """Format a number of bytes in MiB; empty for None."""
    return "" if count is None else f"{count / 2**20:,.0f} MiB"


def ttft(row: Row) -> str:
    """The time to first token with its quartiles."""
    return f"{seconds(row['ttft_seconds'])} [{seconds(row['ttft_low'])}, {seconds(row['ttft_high'])}]"


def keep_text(row: Row) -> str:
    """A row's keep ratio; empty for modes without a keep ratio. Rows without a mode are about `select`."""
    mode = row.get("mode", "select")
    if mode != AUTO and (mode not in MODES or not MODES[mode].uses_keep):
        return ""
    return "auto" if row["keep"] is None else f"{row['keep']:g}"


def cells(rows: Iterable[Row], columns: Columns) -> list[list[str]]:
    """The text of every cell, row by row."""
    return [[text(row) for text in columns.values()] for row in rows]


def show_benchmark(
    measure: Callable[[Callable[[str], None]], list[Row]],
    columns: Columns,
    json: bool,
    quiet: bool,
    plot: Path | None = None,
    draw: Callable[[list[Row]], str] | None = None,
) -> None:
    """Measure, print the rows as a table or as a JSON object with host and versions, and draw them to a file.

    measure: called with a function that shows the progress
    """
    with Notes(quiet).progress("measuring") as update:
        rows = measure(update)
    show_rows(rows, columns, json, host=host(), versions=versions())
    if plot is not None and draw is not None:
        write_whole(plot, draw(rows))


def show_rows(rows: Sequence[Row], columns: Columns, json: bool, **others: Any) -> None:
    """Print rows as a table, or as a JSON object; others: further keys of the object."""
    if json:
        print_json({"rows": rows, **others})
    else:
        console(sys.stdout).print(rich_table(list(columns), cells(rows, columns)))


def rich_table(header: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> Table:
    """Build a table for a terminal; a table with a title aligns its figures to the right."""
    table = Table(title=title and plain(title), title_justify="left", box=None, padding=(0, 2, 0, 0))
    for place, label in enumerate(header):
        table.add_column(plain(label), justify="right" if title and place else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(plain, row))
    return table


def markdown(rows: Iterable[Row], columns: Columns) -> str:
    """Rows as a Markdown table."""
    lines = [list(columns), ["---"] * len(columns), *cells(rows, columns)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def host() -> dict[str, str | int]:
    """The measured machine."""
    import torch

    gpus = [torch.cuda.get_device_name(place) for place in range(torch.cuda.device_count())]
    return {
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "gpus": ", ".join(gpus),
    }


def versions() -> dict[str, str]:
    """Versions of specprefill, its main dependencies, and Python."""
    packages = {name: version(name) for name in ("torch", "transformers")}
    return {"specprefill": __version__, **packages, "python": platform.python_version()}

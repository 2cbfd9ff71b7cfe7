"""Tables of `bench` and `evaluate`; this module imports torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from specprefill_cli.cli.console import console, print_json
from specprefill_cli.lab.benchmarks.prefill import host, versions
from specprefill_cli.reporting.table import keep_text, phase_text, seconds

# The text of a row's cell by column.
Columns = Mapping[str, Callable[[Any], str]]

PREFILL: Columns = {
    "tokens": lambda row: f"{row.length:,}",
    "mode": lambda row: row.mode,
    "keep": lambda row: keep_text(row.mode, row.keep),
    "TTFT [quartiles]": lambda row: f"{seconds(row.ttft_seconds)} [{seconds(row.ttft_low)}, {seconds(row.ttft_high)}]",
    "x full": lambda row: optional(".2f", row.speedup),
    "limit": lambda row: optional(".2f", row.limit),
    "efficiency": lambda row: optional(".2f", row.efficiency),
    "peak memory": lambda row: mebibytes(row.peak_memory_bytes),
    "of it new": lambda row: mebibytes(row.memory_growth_bytes),
    "phases": lambda row: phase_text(row.phases),
}
DECODE: Columns = {
    "task": lambda row: row.task,
    "speculate": lambda row: row.speculate,
    "tokens": lambda row: str(row.answer_tokens),
    "plain": lambda row: f"{row.plain_tokens_per_second:,.0f}/s",
    "speculative": lambda row: f"{row.tokens_per_second:,.0f}/s",
    r"x plain \[quartiles]": lambda row: f"{row.speedup:.2f} [{row.speedup_low:.2f}, {row.speedup_high:.2f}]",
    "accepted": lambda row: optional(".2f", row.acceptance_rate),
    "a round": lambda row: optional(".1f", row.accepted_length_mean),
    "proposer": lambda row: row.proposer or "",
    "tokens the same": lambda row: "" if row.identical is None else "yes" if row.identical else "no",
}
EVALUATION: Columns = {
    "mode": lambda row: row.mode,
    "keep": lambda row: keep_text(row.mode, row.keep),
    "scorer": lambda row: row.scorer or "",
    "n": lambda row: str(row.n),
    "right": lambda row: str(row.right),
    "EM": lambda row: f"{row.em:.1f}",
    "F1 [95 %]": lambda row: f"{row.f1:.1f} [{row.f1_low:.1f}, {row.f1_high:.1f}]",
    "F1 - full [95 %]": lambda row: optional("+.1f", row.f1_delta, row.f1_delta_low, row.f1_delta_high),
    "kept": lambda row: f"{row.kept_ratio:.2f}",
    "TTFT": lambda row: f"{row.ttft_seconds * 1000:,.0f} ms",
    "x full": lambda row: optional(".2f", row.ttft_ratio),
}


def show_benchmark(rows: Sequence[Any], columns: Columns, json: bool) -> None:
    """Print a benchmark's rows: as one JSON object with host and versions, or as a table."""
    if json:
        print_json({"rows": [asdict(row) for row in rows], "host": host(), "versions": versions()})
    else:
        show_table(rows, columns)


def show_table(rows: Sequence[Any], columns: Columns) -> None:
    """Print rows as a table on standard output."""
    table = Table(*columns, box=None)
    for row in rows:
        table.add_row(*(text(row) for text in columns.values()))
    console(sys.stdout).print(table)


def optional(form: str, value: float | None, *interval: float) -> str:
    """A formatted number with its interval; empty for None."""
    if value is None:
        return ""
    return format(value, form) + (f" [{', '.join(format(bound, form) for bound in interval)}]" if interval else "")


def mebibytes(count: int | None) -> str:
    """A number of bytes in MiB; empty for None."""
    return "" if count is None else f"{count / 2**20:,.0f} MiB"

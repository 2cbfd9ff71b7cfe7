"""Tables of `bench` and `evaluate`; this module imports torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table

from specprefill_cli.cli.console import console, print_json
from specprefill_cli.reporting.table import keep_text, phase_text, seconds

if TYPE_CHECKING:
    from specprefill_cli.lab.benchmarks.decode import DecodeRow
    from specprefill_cli.lab.benchmarks.prefill import BenchRow
    from specprefill_cli.lab.evaluation.runner import Row


def show_rows(rows: Sequence[Any], json: bool, table: Callable[[Sequence[Any]], Table]) -> None:
    """Print a benchmark's rows: as one JSON object with host and versions, or as a table."""
    from specprefill_cli.lab.benchmarks.prefill import host, versions

    if json:
        print_json({"rows": [asdict(row) for row in rows], "host": host(), "versions": versions()})
    else:
        console(sys.stdout).print(table(rows))


def prefill_table(rows: Sequence[BenchRow]) -> Table:
    """Times to first token by length, mode and keep ratio."""
    table = Table(
        "tokens",
        "mode",
        "keep",
        "TTFT [quartiles]",
        "x full",
        "limit",
        "efficiency",
        "peak memory",
        "of it new",
        "phases",
        box=None,
    )
    for row in rows:
        table.add_row(
            f"{row.length:,}",
            row.mode,
            keep_text(row.mode, row.keep),
            f"{seconds(row.ttft_seconds)} [{seconds(row.ttft_low)}, {seconds(row.ttft_high)}]",
            number(row.speedup, ".2f"),
            number(row.limit, ".2f"),
            number(row.efficiency, ".2f"),
            mebibytes(row.peak_memory_bytes),
            mebibytes(row.memory_growth_bytes),
            phase_text(row.phases),
        )
    return table


def decode_table(rows: Sequence[DecodeRow]) -> Table:
    """Tokens a second of plain and speculative decoding."""
    table = Table(
        "task",
        "speculate",
        "tokens",
        "plain",
        "speculative",
        r"x plain \[quartiles]",
        "accepted",
        "a round",
        "proposer",
        "tokens the same",
        box=None,
    )
    for row in rows:
        table.add_row(
            row.task,
            row.speculate,
            str(row.answer_tokens),
            f"{row.plain_tokens_per_second:,.0f}/s",
            f"{row.tokens_per_second:,.0f}/s",
            f"{row.speedup:.2f} [{row.speedup_low:.2f}, {row.speedup_high:.2f}]",
            number(row.acceptance_rate, ".2f"),
            number(row.accepted_length_mean, ".1f"),
            row.proposer or "",
            "" if row.identical is None else "yes" if row.identical else "no",
        )
    return table


def evaluation_table(rows: Sequence[Row]) -> Table:
    """Quality and time to first token by configuration."""
    table = Table(
        "mode",
        "keep",
        "scorer",
        "n",
        "right",
        "EM",
        "F1 [95 %]",
        "F1 - full [95 %]",
        "kept",
        "TTFT",
        "x full",
        box=None,
    )
    for row in rows:
        delta = (
            "" if row.f1_delta is None else f"{row.f1_delta:+.1f} [{row.f1_delta_low:+.1f}, {row.f1_delta_high:+.1f}]"
        )
        table.add_row(
            row.mode,
            keep_text(row.mode, row.keep),
            row.scorer or "",
            str(row.n),
            str(row.right),
            f"{row.em:.1f}",
            f"{row.f1:.1f} [{row.f1_low:.1f}, {row.f1_high:.1f}]",
            delta,
            f"{row.kept_ratio:.2f}",
            f"{row.ttft_seconds * 1000:,.0f} ms",
            number(row.ttft_ratio, ".2f"),
        )
    return table


def number(value: float | None, form: str) -> str:
    """A formatted number; empty for None."""
    return "" if value is None else format(value, form)


def mebibytes(count: int | None) -> str:
    """A number of bytes in MiB; empty for None."""
    return "" if count is None else f"{count / 2**20:,.0f} MiB"

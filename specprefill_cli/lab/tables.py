"""Tables of figures, for a terminal and for Markdown: those of `bench` and `evaluate`, and the parts that others share."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from rich.table import Table

from specprefill_cli import __version__
from specprefill_cli.cli.console import console, print_json
from specprefill_cli.prefill.registry import MODES
from specprefill_cli.reporting.safe import plain
from specprefill_cli.reporting.table import phase_text, seconds

# The text of a row's cell by column.
Columns = Mapping[str, Callable[[Any], str]]


def cells(rows: Iterable[Any], columns: Columns) -> list[list[str]]:
    """The text of every cell, row by row."""
    return [[text(row) for text in columns.values()] for row in rows]


def number(value: float | None, form: str = ".2f", *interval: float, unknown: str = "") -> str:
    """A formatted number with its interval; `unknown` for None."""
    if value is None:
        return unknown
    return format(value, form) + (f" [{', '.join(format(bound, form) for bound in interval)}]" if interval else "")


def mebibytes(count: int | None) -> str:
    """A number of bytes in MiB; empty for None."""
    return "" if count is None else f"{count / 2**20:,.0f} MiB"


def signal(row: Any, name: str) -> tuple[Any, ...]:
    """The AUROC of a signal, its format, and its interval."""
    value, low, high, _ = row.signals[name]
    return value, ".2f", low, high


PREFILL: Columns = {
    "tokens": lambda row: f"{row.length:,}",
    "mode": lambda row: row.mode,
    "keep": lambda row: keep_text(row.mode, row.keep),
    "TTFT [quartiles]": lambda row: f"{seconds(row.ttft_seconds)} [{seconds(row.ttft_low)}, {seconds(row.ttft_high)}]",
    "x full": lambda row: number(row.speedup),
    "operations, x full": lambda row: number(row.limit),
    "speedup / operations": lambda row: number(row.efficiency),
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
    "x plain [quartiles]": lambda row: number(row.speedup, ".2f", row.speedup_low, row.speedup_high),
    "accepted": lambda row: number(row.acceptance_rate),
    "a round": lambda row: number(row.accepted_length_mean, ".1f"),
    "proposer": lambda row: row.proposer or "",
    "tokens the same": lambda row: "" if row.identical is None else "yes" if row.identical else "no",
}
THROUGHPUT: Columns = {
    "tokens": lambda row: f"{row.length:,}",
    "mode": lambda row: row.mode,
    "keep": lambda row: keep_text(row.mode, row.keep),
    "concurrency": lambda row: row.concurrency,
    "questions/s": lambda row: number(row.rate, ".2f", unknown="none"),
    "x full": lambda row: number(row.ratio),
    "TTFT median": lambda row: number(row.ttft_median, ".2f"),
    "95 %": lambda row: number(row.ttft_p95),
    "gap median": lambda row: number(row.gap_median, ".3f"),
    "gap 95 %": lambda row: number(row.gap_p95, ".3f"),
}
SERVER: Columns = {
    "clients": lambda row: f"{row.clients:,}",
    "seconds": lambda row: f"{row.seconds:g}",
    "answers": lambda row: f"{row.answers:,}",
    "answers/s": lambda row: number(row.rate),
    "errors": lambda row: f"{row.errors:,}",
    "TTFT median": lambda row: number(row.ttft_median),
    "99 %": lambda row: number(row.ttft_p99),
    "same answer": lambda row: f"{row.same_answer} of {row.questions}",
    "memory": lambda row: mebibytes(row.memory_early_bytes),
    "at the end": lambda row: mebibytes(row.memory_late_bytes),
}
NEEDLES: Columns = {
    "prompt": lambda row: f"{row.prompt_tokens:,} tokens",
    "right": lambda row: f"{row.right} of {row.n}",
    "kept": lambda row: f"{row.kept_tokens:,}",
    "TTFT [quartiles]": lambda row: f"{seconds(row.ttft_seconds)} [{seconds(row.ttft_low)}, {seconds(row.ttft_high)}]",
    "for 100,000 tokens": lambda row: seconds(row.unit_seconds),
    "peak memory": lambda row: mebibytes(row.peak_memory_bytes),
}
RECALL: Columns = {
    "scorer": lambda row: row.scorer,
    "keep": lambda row: keep_text("select", row.keep),
    "n": lambda row: str(row.n),
    "recall [95 %]": lambda row: number(row.recall, ".1f", row.recall_low, row.recall_high),
    "- first [95 %]": lambda row: number(row.delta, "+.1f", row.delta_low, row.delta_high),
    "answer": lambda row: number(row.answer, ".1f"),
    "in passages": lambda row: number(row.shown, ".1f"),
    "kept": lambda row: number(row.kept_ratio, ".3f"),
    "new, 1,000 tokens": lambda row: f"{row.new_ms:,.0f} ms",
    "known": lambda row: f"{row.known_ms:,.0f} ms",
}
EVALUATION: Columns = {
    "mode": lambda row: row.mode,
    "keep": lambda row: keep_text(row.mode, row.keep),
    "scorer": lambda row: row.scorer or "",
    "n": lambda row: str(row.n),
    "right": lambda row: str(row.right),
    "EM": lambda row: number(row.em, ".1f"),
    "F1 [95 %]": lambda row: number(row.f1, ".1f", row.f1_low, row.f1_high),
    "answer kept [95 %]": lambda row: number(row.answer_kept, ".1f", row.answer_kept_low, row.answer_kept_high),
    "in passages": lambda row: number(row.evidence.passage_recall, ".1f"),
    "likely, right": lambda row: f"{row.evidence.likely.n}, {row.evidence.likely.right}" if row.evidence.likely else "",
    "F1 - full [95 %]": lambda row: number(row.f1_delta, "+.1f", row.f1_delta_low, row.f1_delta_high),
    "kept": lambda row: number(row.kept_ratio),
    "TTFT": lambda row: f"{row.ttft_seconds * 1000:,.0f} ms",
    "x full": lambda row: number(row.ttft_ratio),
}
CONFIRMATION: Columns = {
    "keep": lambda row: keep_text("select", row.keep),
    "n": lambda row: str(row.n),
    "confirmed, % [95 %]": lambda row: number(row.confirmed, ".1f", row.confirmed_low, row.confirmed_high),
    "final = full": lambda row: f"{row.same} of {row.n}",
    "F1 provisional": lambda row: number(row.provisional_f1, ".1f"),
    "final": lambda row: number(row.final_f1, ".1f"),
    "TTFT": lambda row: seconds(row.ttft_seconds),
    "confirmed after": lambda row: seconds(row.confirmed_seconds),
    "full": lambda row: seconds(row.full_seconds),
    "x full": lambda row: number(row.time_ratio),
    "AUROC confidence": lambda row: number(*signal(row, "confidence")),
    "margin": lambda row: number(*signal(row, "margin")),
    "mass": lambda row: number(*signal(row, "mass")),
}


def show_benchmark(rows: Sequence[Any], columns: Columns, json: bool) -> None:
    """Print a benchmark's rows: as one JSON object with host and versions, or as a table."""
    if json:
        print_json({"rows": [asdict(row) for row in rows], "host": host(), "versions": versions()})
    else:
        show_table(rows, columns)


def show_table(rows: Iterable[Any], columns: Columns) -> None:
    """Print rows as a table on standard output."""
    console(sys.stdout).print(rich_table(list(columns), cells(rows, columns)))


def rich_table(header: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> Table:
    """A table for a terminal; one with a title has its figures to the right."""
    table = Table(title=title and plain(title), title_justify="left", box=None, padding=(0, 2, 0, 0))
    for place, label in enumerate(header):
        table.add_column(plain(label), justify="right" if title and place else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(plain, row))
    return table


def markdown(rows: Iterable[Any], columns: Columns) -> str:
    """Rows as a Markdown table."""
    lines = [list(columns), ["---"] * len(columns), *cells(rows, columns)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def host() -> dict[str, str | int]:
    """The machine that is measured."""
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


def keep_text(mode: str, keep: float | None) -> str:
    """Write a keep ratio for a table of modes; empty for modes that have none."""
    if mode not in MODES or not MODES[mode].uses_keep:
        return ""
    return "auto" if keep is None else f"{keep:g}"

"""Speedup over full prefill against the prompt's length."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from specprefill_cli.lab.benchmarks.prefill import BenchRow
from specprefill_cli.lab.evaluation.runner import BASELINE
from specprefill_cli.lab.plots import Series, line_plot
from specprefill_cli.prefill.registry import MODES

TITLE = "Speedup of the time to first token over full prefill"


def speedup_plot(rows: Sequence[BenchRow]) -> str:
    """A benchmark's rows as SVG: a line for each mode and keep ratio, with the ratio of its counted operations."""
    return line_plot(
        TITLE,
        "prompt length in tokens (logarithmic)",
        f"speedup over {BASELINE}",
        series_of(rows),
        x_log=True,
        bound_name="ratio of counted operations",
        baseline=(BASELINE, 1.0),
    )


def series_of(rows: Sequence[BenchRow]) -> list[Series]:
    """The rows with a speedup by mode and keep ratio, in the order in which they came; with ratios of operations."""
    lines: dict[str, list[BenchRow]] = defaultdict(list)
    for row in rows:
        if row.mode != BASELINE and row.speedup is not None:
            lines[series_name(row)].append(row)
    series = []
    for name, line in lines.items():
        line.sort(key=lambda row: row.length)
        points = [(row.length, row.speedup) for row in line if row.speedup is not None]
        bound = [(row.length, row.limit) for row in line if row.limit is not None]
        series.append(Series(name, points, bound=bound if len(bound) == len(points) else ()))
    return series


def series_name(row: BenchRow) -> str:
    """The row's mode, and its keep ratio if it has one."""
    if row.keep is not None:
        return f"{row.mode}, keep {row.keep:g}"
    return f"{row.mode}, keep auto" if row.mode in MODES and MODES[row.mode].uses_keep else row.mode

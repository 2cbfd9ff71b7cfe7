"""Speedup over full prefill against the prompt's length, as a drawing (SVG) that needs nothing beside it.

It is readable on light and on dark paper: the reader's colour scheme decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from specprefill_cli.prefill.registry import MODES
from specprefill_cli.reporting.safe import printable

if TYPE_CHECKING:
    from specprefill_cli.lab.benchmarks.prefill import BenchRow

WIDTH, HEIGHT = 760, 430
LEFT, RIGHT, TOP, BOTTOM = 62, 560, 48, 366
LEGEND = 580
MOST_LABELS = 8
# Wong's palette (Nature Methods 8, 441, 2011), told apart by colour-blind readers too; the second of each for dark paper.
COLOURS = (
    ("#0072b2", "#56b4e9"),
    ("#d55e00", "#ff8c42"),
    ("#007d5b", "#2fc79b"),
    ("#a6467f", "#e39ac6"),
    ("#8a6d00", "#f0e442"),
    ("#555555", "#bbbbbb"),
)


@dataclass(frozen=True)
class Point:
    """What was measured at one length; limit: the compute-bound speedup, where it is known."""

    length: int
    speedup: float
    limit: float | None


@dataclass(frozen=True)
class Series:
    """One line of the plot, by length."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Axes:
    """Where values lie in the drawing: lengths on a logarithmic scale, speedups from 0 to `top`."""

    shortest: int
    longest: int
    top: float

    def x(self, length: int) -> float:
        span = math.log2(self.longest / self.shortest)
        share = math.log2(length / self.shortest) / span if span else 0.5
        # Points on the frame would be cut in half.
        return LEFT + 24 + share * (RIGHT - LEFT - 48)

    def y(self, speedup: float) -> float:
        return BOTTOM - speedup / self.top * (BOTTOM - TOP)


def speedup_plot(rows: Sequence[BenchRow]) -> str:
    """The drawing of a benchmark's rows: a line for each mode and keep ratio, and its compute-bound limit as a thin one.

    Rows without a speedup, and `full` itself, are left out. Raises ValueError where nothing is left.
    """
    lines = series_of(rows)
    if not lines:
        raise ValueError("no row has a speedup over full")
    points = [point for line in lines for point in line.points]
    highest = max(max(point.speedup, point.limit or 0.0) for point in points)
    step = tick_step(max(highest, 1.0))
    lengths = sorted({point.length for point in points})
    axes = Axes(lengths[0], lengths[-1], step * math.ceil(max(highest, 1.0) / step))
    body = [
        *frame(axes, lengths, step),
        *(mark for number, line in enumerate(lines) for mark in drawn(line, number % len(COLOURS), axes)),
        *legend(lines),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'role="img" aria-labelledby="title">\n'
        f'<title id="title">Speedup of the time to first token over full prefill</title>\n<style>{style()}</style>\n'
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def series_of(rows: Sequence[BenchRow]) -> list[Series]:
    """The rows by mode and keep ratio, in the order in which they came."""
    found: dict[str, list[Point]] = {}
    for row in rows:
        if row.mode != "full" and row.speedup is not None:
            found.setdefault(series_name(row), []).append(Point(row.length, row.speedup, row.limit))
    return [Series(name, tuple(sorted(points, key=lambda point: point.length))) for name, points in found.items()]


def series_name(row: BenchRow) -> str:
    if row.keep is not None:
        return f"{row.mode}, keep {row.keep:g}"
    return f"{row.mode}, keep auto" if row.mode in MODES and MODES[row.mode].uses_keep else row.mode


def tick_step(top: float) -> float:
    """A round step that gives 4 to 8 parts up to `top`."""
    size = 10.0 ** math.floor(math.log10(top))
    return next(step for step in (0.2 * size, 0.5 * size, size, 2 * size) if top / step <= 8)


def style() -> str:
    light = "".join(f".c{number}{{--c:{pair[0]}}}" for number, pair in enumerate(COLOURS))
    dark = "".join(f".c{number}{{--c:{pair[1]}}}" for number, pair in enumerate(COLOURS))
    return (
        "text{font:13px system-ui,sans-serif;fill:var(--ink)}svg{--paper:#fff;--ink:#222;--grid:#ddd}"
        ".paper{fill:var(--paper)}.grid{stroke:var(--grid)}.axis,.even{stroke:var(--ink)}"
        ".even{stroke-dasharray:2 4}.small{font-size:12px}.head{font-size:15px;font-weight:600}"
        ".line,.limit{fill:none;stroke:var(--c)}.line{stroke-width:2.5}.limit{stroke-width:1;stroke-dasharray:6 3}"
        f".dot{{fill:var(--c)}}{light}"
        f"@media(prefers-color-scheme:dark){{svg{{--paper:#16181c;--ink:#e6e6e6;--grid:#3a3d44}}{dark}}}"
    )


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{escape(printable(words))}</text>'


def stroke(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def frame(axes: Axes, lengths: Sequence[int], step: float) -> list[str]:
    """Title, axes with their names and marks, and the line at which a mode is as fast as `full`."""
    marks = [text(LEFT, 26, "Speedup of the time to first token over full prefill", "head")]
    for number in range(round(axes.top / step) + 1):
        height = axes.y(number * step)
        marks += [stroke("grid", LEFT, height, RIGHT, height)]
        marks += [text(LEFT - 8, height + 4, f"{number * step:g}x", "small", "end")]
    every = math.ceil(len(lengths) / MOST_LABELS)
    for number, length in enumerate(lengths):
        marks.append(stroke("axis", axes.x(length), BOTTOM, axes.x(length), BOTTOM + 5))
        if number % every == 0:
            marks.append(text(axes.x(length), BOTTOM + 20, f"{length:,}", "small", "middle"))
    middle = (TOP + BOTTOM) / 2
    return [
        *marks,
        stroke("axis", LEFT, BOTTOM, RIGHT, BOTTOM),
        stroke("axis", LEFT, TOP, LEFT, BOTTOM),
        stroke("even", LEFT, axes.y(1), RIGHT, axes.y(1)),
        text((LEFT + RIGHT) / 2, BOTTOM + 46, "prompt length in tokens (logarithmic)", anchor="middle"),
        f'<g transform="rotate(-90 16 {middle:.1f})">{text(16, middle, "times as fast as full", anchor="middle")}</g>',
    ]


def drawn(line: Series, colour: int, axes: Axes) -> list[str]:
    """One line with its points, and its limit where every point has one; a point's tooltip says its numbers."""
    marks = []
    if all(point.limit is not None for point in line.points):
        marks.append(path("limit", colour, [(axes.x(point.length), axes.y(point.limit)) for point in line.points]))
    places = [(axes.x(point.length), axes.y(point.speedup)) for point in line.points]
    marks.append(path("line", colour, places))
    for point, (x, y) in zip(line.points, places, strict=True):
        bound = "" if point.limit is None else f", limit {point.limit:.2f}x"
        told = escape(printable(f"{line.name}, {point.length:,} tokens: {point.speedup:.2f}x{bound}"))
        marks.append(f'<circle class="dot c{colour}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"><title>{told}</title></circle>')
    return marks


def path(kind: str, colour: int, places: Sequence[tuple[float, float]]) -> str:
    """A line through places; a single one gets a short stroke, so that it can be seen."""
    if len(places) == 1:
        (x, y) = places[0]
        places = [(x - 12, y), (x + 12, y)]
    corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline class="{kind} c{colour}" points="{corners}"/>'


def legend(lines: Sequence[Series]) -> list[str]:
    """Names of the lines, and what thin and dotted lines mean."""
    marks, y = [], TOP + 8
    for number, line in enumerate(lines):
        colour = number % len(COLOURS)
        marks.append(path("line", colour, [(LEGEND, y), (LEGEND + 24, y)]))
        marks.append(f'<circle class="dot c{colour}" cx="{LEGEND + 12}" cy="{y}" r="4.5"/>')
        marks.append(text(LEGEND + 32, y + 4, line.name))
        y += 22
    if any(point.limit is not None for line in lines for point in line.points):
        marks.append(path("limit", len(COLOURS) - 1, [(LEGEND, y), (LEGEND + 24, y)]))
        marks.append(text(LEGEND + 32, y + 4, "compute-bound limit"))
        y += 22
    return [*marks, stroke("even", LEGEND, y, LEGEND + 24, y), text(LEGEND + 32, y + 4, "full")]

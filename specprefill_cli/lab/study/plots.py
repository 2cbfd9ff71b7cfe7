"""Plots as SVG text: pure functions of numbers. Every word in them is escaped, every mark names its value on hovering.

Colours are the page's where there is one, with a fallback for a file that stands alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from specprefill_cli.reporting.safe import printable
from specprefill_cli.reporting.strip import HEAT

WIDTH = 480
COLOURS = ("var(--p1, #2f7fc1)", "var(--p5, #c0504d)", "var(--p7, #3f9a61)", "var(--p2, #6a51a3)", "var(--p3, #d98c12)")
DASHES = ("", "6 4", "2 3", "9 3 2 3")
HEADING = ' font-weight="600" font-size="14"'
LINE = "var(--line, #c9c5bb)"
LEFT, RIGHT, TOP, PLOT_HEIGHT, AXIS, LEGEND_LINE = 58, 14, 36, 210, 44, 20


@dataclass(frozen=True)
class Series:
    """A line of a chart: points (x, y), ascending in x; intervals: per point (low, high), or nothing."""

    name: str
    points: Sequence[tuple[float, float]]
    intervals: Sequence[tuple[float, float]] = ()


def words(text: str) -> str:
    """Text for SVG: control characters shown, markup escaped, in one line."""
    return escape(printable(" ".join(text.split())), quote=True)


def number(value: float) -> str:
    """A value as a reader wants it: three digits that count."""
    return f"{value:.3g}" if abs(value) < 1_000 else f"{value:,.0f}"


def label(x: float, y: float, text: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{words(text)}</text>'


def frame(title: str, height: float, parts: Sequence[str]) -> str:
    """The picture around its parts; no line breaks, so that it passes a template unchanged."""
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{words(title)}" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="currentColor"><title>{words(title)}</title>'
        f"{label(8, 20, title, 'start', HEADING)}{''.join(parts)}</svg>"
    )


def standalone(svg: str) -> str:
    """The picture as a file of its own."""
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + svg.replace(
        "<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1
    )


def heat_map(title: str, values: Sequence[Sequence[float | None]], row_word: str, column_word: str) -> str:
    """A cell for each value: rows (the first at the bottom) by columns; the brighter, the larger; None: unknown.

    column_word: what the columns divide into equal shares, from 0 to 100 %
    """
    columns = len(values[0])
    largest = max((value for row in values for value in row if value is not None), default=0.0)
    wide, high = (WIDTH - LEFT - RIGHT) / columns, 22 if len(values) <= 24 else 15
    parts = []
    for index, row in enumerate(values):
        y = TOP + (len(values) - 1 - index) * high
        parts.append(label(LEFT - 8, y + high / 2 + 4, str(index), "end"))
        for column, value in enumerate(row):
            x = LEFT + column * wide
            share = f"{100 * column / columns:.0f}-{100 * (column + 1) / columns:.0f} %"
            level = round((len(HEAT) - 1) * value / largest) if value is not None and largest > 0 else 0
            exact, short = ("unknown", "-") if value is None else (f"{value:.4g}", f"{value:.2f}")
            ink = "#fff" if level <= len(HEAT) // 2 else "#14171a"
            parts.append(
                f'<g><title>{words(f"{row_word} {index}, {column_word} {share}: {exact}")}</title>'
                f'<rect x="{x:.1f}" y="{y}" width="{wide - 1:.1f}" height="{high - 1}" fill="{HEAT[level]}"/>'
                + label(x + wide / 2, y + high / 2 + 4, short, more=f' font-size="11" fill="{ink}"')
                + "</g>"
            )  # fmt: skip
    bottom = TOP + len(values) * high
    for share, anchor in ((0, "start"), (0.5, "middle"), (1, "end")):
        parts.append(label(LEFT + share * columns * wide, bottom + 16, f"{share:.0%}".replace("%", " %"), anchor))
    parts.append(label((LEFT + WIDTH - RIGHT) / 2, bottom + 36, column_word))
    parts.append(vertical(row_word, TOP + len(values) * high / 2))
    return frame(title, bottom + AXIS, parts)


def vertical(text: str, middle: float) -> str:
    return label(0, 0, text, more=f' transform="translate(14 {middle:.1f}) rotate(-90)"')


def line_chart(title: str, x_word: str, y_word: str, series: Sequence[Series], x_percent: bool = False) -> str:
    """Lines from a y axis that begins at 0; at least one point is needed.

    x_percent: whether x is a share that is written in percent
    """
    xs = sorted({x for one in series for x, _ in one.points})
    tops = [y for one in series for _, y in one.points] + [high for one in series for _, high in one.intervals]
    steps = ticks(max(tops))
    low, high = xs[0], xs[-1] if xs[-1] > xs[0] else xs[0] + 1

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - low) / (high - low) * (WIDTH - LEFT - RIGHT - 12) + 6
        return across, TOP + PLOT_HEIGHT * (1 - y / steps[-1])

    parts = []
    for step in steps:
        y = place(low, step)[1]
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{LINE}" fill="none"/>')
        parts.append(label(LEFT - 6, y + 4, number(step), "end"))
    for x in xs[:: -(-len(xs) // 10)]:
        parts.append(label(place(x, 0)[0], TOP + PLOT_HEIGHT + 17, f"{100 * x:g} %" if x_percent else f"{x:g}"))
    parts.append(label((LEFT + WIDTH - RIGHT) / 2, TOP + PLOT_HEIGHT + 37, x_word))
    parts.append(vertical(y_word, TOP + PLOT_HEIGHT / 2))
    for index, one in enumerate(series):
        parts += line_parts(one, index, place)
    bottom = TOP + PLOT_HEIGHT + AXIS + 4
    for index, one in enumerate(series):
        y = bottom + LEGEND_LINE * index
        parts.append(f'<path d="M{LEFT} {y + 8}h26" {stroke(index)}/>' + label(LEFT + 34, y + 12, one.name, "start"))
    return frame(title, bottom + LEGEND_LINE * len(series) + 4, parts)


def line_parts(one: Series, index: int, place) -> list[str]:
    """A series: its line, its intervals, and a dot for each point with the value as its title."""
    placed = [place(x, y) for x, y in one.points]
    parts = [f'<path d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in placed)}" {stroke(index)}/>']
    for (x, _), (bottom, top) in zip(one.points, one.intervals, strict=False):
        across, start, end = place(x, bottom)[0], place(x, bottom)[1], place(x, top)[1]
        parts.append(
            f'<path d="M{across:.1f} {start:.1f}V{end:.1f}" stroke="{colour(index)}" stroke-width="3" opacity="0.45"/>'
        )
    for (x, y), (across, down) in zip(one.points, placed, strict=True):
        parts.append(
            f'<circle cx="{across:.1f}" cy="{down:.1f}" r="3.5" fill="{colour(index)}">'
            f"<title>{words(f'{one.name}, {x:g}: {y:.4g}')}</title></circle>"
        )
    return parts


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def stroke(index: int) -> str:
    """Lines differ in dashes too, for readers who do not tell the colours apart."""
    dashes = DASHES[index % len(DASHES)]
    return f'fill="none" stroke="{colour(index)}" stroke-width="2"' + (
        f' stroke-dasharray="{dashes}"' if dashes else ""
    )


def ticks(largest: float) -> list[float]:
    """Three to six round numbers from 0 up to the first one that is not below the largest value."""
    if largest <= 0:
        return [0.0, 1.0]
    size = 10.0 ** math.floor(math.log10(largest / 4))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor * 5 >= largest)
    return [step * place for place in range(math.ceil(largest / step - 1e-9) + 1)]

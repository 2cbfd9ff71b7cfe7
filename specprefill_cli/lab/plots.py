"""Draws plots as SVG with matplotlib: dark marks on white, readable on light and dark pages.

The same data always gives the same file. Matplotlib is an optional dependency, imported only when a plot is drawn.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from io import StringIO
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import quoteattr

from specprefill_cli.errors import SpecprefillError, pip_command
from specprefill_cli.reporting.text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours that colour-blind readers can tell apart (Wong, Nature Methods 8, 441, 2011).
COLOURS = ("#0072b2", "#d55e00", "#007d5b", "#a6467f", "#8a6d00", "#555555")
MARKERS = "os^Dv"
# Line styles for the first use of the colours, and for the second.
LINE_STYLES = ("-", "-.")
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    # Names of models may hold dollar signs.
    "text.parse_math": False,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
LONGEST_NAME_IN_TWO_COLUMNS = 36
# Least distance of ticks, as a share of the axis: the width of the longest label.
TICK_DISTANCE = 1 / 11


@dataclass(frozen=True)
class Series:
    """A line of points (x, y), ascending in x.

    intervals: (low, high) for each point; bound: points of a thin dashed line in the same colour
    """

    name: str
    points: Sequence[tuple[float, float]]
    intervals: Sequence[tuple[float, float]] = ()
    bound: Sequence[tuple[float, float]] = ()


def require_matplotlib(option: str) -> None:
    """Raise SpecprefillError if matplotlib is not installed; option: the option that needs it."""
    if find_spec("matplotlib") is None:
        raise SpecprefillError(f"{option} needs the package matplotlib; install it with {pip_command('matplotlib')}")


def line_plot(
    title: str,
    x_label: str,
    y_label: str,
    series: Sequence[Series],
    *,
    x_percent: bool = False,
    x_log: bool = False,
    bound_name: str = "",
    baseline: tuple[str, float] | None = None,
) -> str:
    """Draw lines over a y axis that begins at 0, as an SVG element.

    x_percent: x is a ratio, shown in percent; x_log: a logarithmic x axis, base 2; bound_name: the bounds' name in the legend
    baseline: name and y of a dotted horizontal line
    """
    with drawing(title) as (figure, axes):
        for index, line in enumerate(series):
            draw_series(axes, line, index)
        if any(line.bound for line in series):
            axes.plot([], [], color=COLOURS[-1], linewidth=1, linestyle="--", label=bound_name)
        if baseline is not None:
            axes.axhline(baseline[1], color="black", linewidth=1, linestyle=":", label=baseline[0])
        places = sorted({x for line in series for x, _ in line.points})
        if x_log:
            axes.set_xscale("log", base=2)
        shown = space_ticks(places, math.log2 if x_log else float)
        forms = [".0%" if x_percent else ",.0f" if x == int(x) else ".2g" for x in shown]
        axes.set_xticks(shown, list(map(format, shown, forms)))
        axes.set_xticks([], minor=True)
        axes.set(xlabel=x_label, ylabel=y_label)
        highest = max(y for line in series for _, y in line.points)
        axes.set_ylim(0, max(axes.get_ylim()[1], 1.05 * highest))
        axes.grid(axis="y", color="#dddddd")
        axes.set_axisbelow(True)
        names = axes.get_legend_handles_labels()[1]
        columns = 1 if max(map(len, names)) > LONGEST_NAME_IN_TWO_COLUMNS else 2
        figure.legend(loc="outside lower left", ncols=columns, frameon=False)
        return svg_text(figure, title)


def space_ticks(places: Sequence[float], scale: Callable[[float], float]) -> list[float]:
    """Choose ticks from ascending x values so that their labels do not overlap; scale: maps x to its place on the axis."""
    least = TICK_DISTANCE * (scale(places[-1]) - scale(places[0]))
    shown = [places[0]]
    for place in places[1:]:
        if scale(place) - scale(shown[-1]) >= least:
            shown.append(place)
    return shown


def draw_series(axes: Axes, line: Series, index: int) -> None:
    """Draw a line with its intervals and its bound, named for the legend."""
    colour, (x, y) = COLOURS[index % len(COLOURS)], zip(*line.points, strict=True)
    style, marker = LINE_STYLES[index // len(COLOURS) % len(LINE_STYLES)], MARKERS[index % len(MARKERS)]
    axes.plot(x, y, color=colour, linestyle=style, marker=marker, linewidth=2, label=printable(line.name))
    if line.intervals:
        axes.vlines(x, *zip(*line.intervals, strict=True), color=colour, linewidth=3, alpha=0.45)
    if line.bound:
        axes.plot(*zip(*line.bound, strict=True), color=colour, linewidth=1, linestyle="--")


@contextmanager
def drawing(title: str, height: float = 4.2) -> Iterator[tuple[Figure, Axes]]:
    """Make a figure with a single pair of axes, with matplotlib's defaults and this module's style; height: in inches."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(), warnings.catch_warnings():
        # Ignore glyphs that matplotlib's font lacks: the reader's browser has fonts for them.
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE | {"svg.hashsalt": title})
        figure = Figure(figsize=(7.2, height), layout="constrained")
        axes = figure.subplots()
        axes.set_title(printable(title), loc="left", fontweight="bold")
        yield figure, axes


def svg_text(figure: Figure, title: str) -> str:
    """The figure as an SVG element for a file or a page, labelled for screen readers."""
    buffer = StringIO()
    figure.savefig(buffer, format="svg", metadata=METADATA)
    svg = buffer.getvalue()
    return svg[svg.index("<svg ") :].replace("<svg ", f'<svg class="plot" role="img" aria-label={quoteattr(title)} ', 1)

"""The drawing of a benchmark: well-formed, labelled, and true to its rows."""

import math
import re
import xml.etree.ElementTree as ElementTree

import pytest

from specprefill_cli.lab.benchmarks.plot import Axes, speedup_plot, tick_step
from specprefill_cli.lab.benchmarks.prefill import BenchRow

SVG = "{http://www.w3.org/2000/svg}"


def row(length, mode, keep=None, speedup=1.0, limit=None):
    efficiency = None if limit is None or speedup is None else speedup / limit
    return BenchRow(length, mode, keep, 1.0, 0.9, 1.1, speedup, limit, efficiency, 0.2, None, None, {})


ROWS = [
    row(length, mode, keep, speedup, limit)
    for length, factor in ((16_384, 2.0), (2_048, 0.5), (8_192, 1.0))
    for mode, keep, speedup, limit in (
        ("full", None, 1.0, 1.0),
        ("select", 0.1, 2.4 * factor, 3.0 * factor),
        ("select", 0.2, 2.0 * factor, 2.5 * factor),
        ("transformers", None, 0.95, None),
    )
]


def parts(drawing, kind, name):
    return [element for element in drawing.iter(f"{SVG}{kind}") if name in (element.get("class") or "").split()]


def corners(element):
    return [tuple(map(float, pair.split(","))) for pair in element.get("points").split()]


def test_every_row_is_a_point_at_its_place():
    drawing = ElementTree.fromstring(speedup_plot(ROWS))
    dots = [dot for dot in parts(drawing, "circle", "dot") if dot.find(f"{SVG}title") is not None]
    assert len(dots) == 9
    told = [dot.find(f"{SVG}title").text for dot in dots]
    assert "select, keep 0.1, 8,192 tokens: 2.40x, limit 3.00x" in told
    assert "transformers, 2,048 tokens: 0.95x" in told
    by_title = {dot.find(f"{SVG}title").text: dot for dot in dots}
    fast = by_title["select, keep 0.1, 16,384 tokens: 4.80x, limit 6.00x"]
    slow = by_title["select, keep 0.1, 2,048 tokens: 1.20x, limit 1.50x"]
    assert float(fast.get("cx")) > float(slow.get("cx"))
    assert float(fast.get("cy")) < float(slow.get("cy"))


def test_lines_go_by_length_and_limits_are_only_where_they_are_known():
    drawing = ElementTree.fromstring(speedup_plot(ROWS))
    measured = [line for line in parts(drawing, "polyline", "line") if len(corners(line)) == 3]
    limits = [line for line in parts(drawing, "polyline", "limit") if len(corners(line)) == 3]
    assert (len(measured), len(limits)) == (3, 2)
    for line in measured + limits:
        places = [x for x, _ in corners(line)]
        assert places == sorted(places)
    # A limit lies above what was measured, that is at smaller y, in the same colour.
    assert limits[0].get("class").split()[1] == measured[0].get("class").split()[1]
    assert all(high < low for (_, high), (_, low) in zip(corners(limits[0]), corners(measured[0]), strict=True))


def test_axes_and_lines_are_named_and_the_colour_scheme_is_the_readers():
    drawing = speedup_plot(ROWS)
    words = [element.text for element in ElementTree.fromstring(drawing).iter(f"{SVG}text")]
    for wanted in (
        "prompt length in tokens (logarithmic)", "times as fast as full", "2,048", "8,192", "16,384", "select, keep 0.1",
        "select, keep 0.2", "transformers", "compute-bound limit", "full",
    ):  # fmt: skip
        assert wanted in words
    assert "prefers-color-scheme:dark" in drawing
    assert not re.search(r"http(?!://www\.w3\.org/2000/svg)|<script|<image", drawing)


def test_everything_lies_inside_the_drawing():
    drawing = ElementTree.fromstring(speedup_plot(ROWS))
    _, _, width, height = map(float, drawing.get("viewBox").split())
    for element in drawing.iter():
        for name, end in (("x", width), ("cx", width), ("x2", width), ("y", height), ("cy", height), ("y2", height)):
            if element.get(name) is not None:
                assert 0 <= float(element.get(name)) <= end


def test_one_length_and_auto_can_be_drawn():
    drawing = ElementTree.fromstring(speedup_plot([row(4_096, "select", None, 0.4, 0.5), row(4_096, "draft-kv")]))
    words = [element.text for element in drawing.iter(f"{SVG}text")]
    assert {"select, keep auto", "draft-kv", "1x"} <= set(words)


def test_rows_without_a_speedup_cannot_be_drawn():
    with pytest.raises(ValueError, match="no row has a speedup"):
        speedup_plot([row(512, "full"), row(512, "select", 0.2, None)])


def test_marks_are_round_and_few():
    for top in (1.0, 1.7, 3.9, 8.0, 12.5, 99.0):
        assert 4 <= math.ceil(top / tick_step(top)) <= 8
    axes = Axes(1_024, 4_096, 4.0)
    assert axes.x(2_048) == pytest.approx((axes.x(1_024) + axes.x(4_096)) / 2)
    assert axes.y(2) == pytest.approx((axes.y(0) + axes.y(4)) / 2)

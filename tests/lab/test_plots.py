"""Plots are well-formed, deterministic, opaque SVG that keeps its text; and the error without matplotlib."""

import xml.etree.ElementTree as ElementTree

import pytest

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.lab import plots
from specprefill_cli.lab.plots import Series, line_plot, require_matplotlib
from tests.helpers.output import SVG, svg_texts


def line(name="a", **options):
    return Series(name, [(1, 1.0), (2, 3.0)], **options)


def test_plot_text_is_kept_as_svg_text():
    bounded = [line(bound=[(1, 2), (2, 4)])]
    svg = line_plot("Title", "x label", "y label", bounded, bound_name="limit", baseline=("b", 1))
    assert {"Title", "x label", "y label", "a", "limit", "b", "1", "2"} <= set(svg_texts(svg))
    assert ElementTree.fromstring(svg).get("aria-label") == "Title"


def test_plots_are_deterministic_and_undated():
    first, second = (line_plot("T", "x", "y", [line(intervals=[(0, 2), (2, 4)])]) for _ in range(2))
    assert first == second
    assert "date" not in first.lower()


@pytest.mark.parametrize(
    ("places", "scale", "shown", "left_out"),
    [
        ((0, 0.01, 0.02, 0.15, 0.5), "x_percent", {"0%", "15%", "50%"}, {"1%", "2%"}),
        ((1_024, 8_000, 8_192, 65_536), "x_log", {"1,024", "8,000", "65,536"}, {"8,192"}),
        ((0.384398, 3.1719, 12.0), "x_log", {"0.38", "3.2", "12"}, set()),
    ],
)
def test_labels_of_the_axis_do_not_run_into_one_another(places, scale, shown, left_out):
    labels = set(svg_texts(line_plot("T", "x", "y", [Series("a", [(x, 1) for x in places])], **{scale: True})))
    assert shown <= labels
    assert not left_out & labels


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "$x_1$ and $", "a & b", "\u202e\x1b[2J", "\u6a21\u578b"])
def test_hostile_names_are_shown_but_inert(name, recwarn):
    svg = line_plot("T", "x", "y", [line(name)])
    shown = [text for text in svg_texts(svg) if text not in ("T", "x", "y")]
    if name.isprintable():
        assert name in shown
    assert not {"\u202e", "\x1b"} & set(svg)
    assert not list(ElementTree.fromstring(svg).iter(f"{SVG}script"))
    assert not list(recwarn)


def test_missing_matplotlib_error_names_the_remedy(monkeypatch):
    monkeypatch.setattr(plots, "find_spec", lambda _: None)
    with pytest.raises(SpecprefillError, match=r"--plot needs .* matplotlib; .* -m pip install "):
        require_matplotlib("--plot")

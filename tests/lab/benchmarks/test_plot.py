"""The benchmark plot: one line for each mode and keep ratio, with the values of its rows."""

import xml.etree.ElementTree as ElementTree

from specprefill_cli.lab.benchmarks.plot import series_of, speedup_plot
from specprefill_cli.lab.benchmarks.prefill import BenchRow


def row(length, mode, keep=None, speedup=1.0, limit=None):
    return BenchRow(
        length=length,
        mode=mode,
        keep=keep,
        ttft_seconds=1.0,
        ttft_low=0.9,
        ttft_high=1.1,
        speedup=speedup,
        limit=limit,
        efficiency=None,
        kept_ratio=0.2,
        peak_memory_bytes=None,
        memory_growth_bytes=None,
        phases={},
    )


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


def test_points_are_sorted_by_length_and_bounds_are_optional():
    series = {line.name: line for line in series_of(ROWS)}
    assert list(series) == ["select, keep 0.1", "select, keep 0.2", "transformers"]
    assert series["select, keep 0.1"].points == [(2_048, 1.2), (8_192, 2.4), (16_384, 4.8)]
    assert series["select, keep 0.1"].bound == [(2_048, 1.5), (8_192, 3.0), (16_384, 6.0)]
    assert series["transformers"].bound == ()


def test_keep_auto_appears_only_for_modes_with_a_keep_ratio():
    names = [line.name for line in series_of([row(4_096, "select", None, 0.4, 0.5), row(4_096, "draft-kv")])]
    assert names == ["select, keep auto", "draft-kv"]


def test_plot_names_axes_and_lines():
    labels = [node.text for node in ElementTree.fromstring(speedup_plot(ROWS)).iter("{http://www.w3.org/2000/svg}text")]
    series = {"select, keep 0.1", "transformers", "ratio of counted operations", "full"}
    assert {"2,048", "8,192", "16,384", *series} <= set(labels)
    assert any(label.startswith("prompt length in tokens") for label in labels)

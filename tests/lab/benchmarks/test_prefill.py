"""`bench prefill`: what operations alone would allow, and the lines of the plot: one for each mode and keep ratio."""

from transformers import LlamaConfig

from specprefill_cli.lab.benchmarks.prefill import compute_limit, speedup_lines
from specprefill_cli.models.machine.cost import ModelCost
from tests.helpers.architectures import SIZES

ROWS = [
    {"length": length, "mode": mode, "keep": keep, "speedup": speedup, "limit": limit}
    for length, factor in ((16_384, 2.0), (2_048, 0.5), (8_192, 1.0))
    for mode, keep, speedup, limit in (
        ("full", None, 1.0, 1.0),
        ("select", 0.1, 2.4 * factor, 3.0 * factor),
        ("select", None, 2.0 * factor, 2.5 * factor),
        ("transformers", None, 0.95, None),
    )
]


def test_compute_limit_grows_with_dropped_tokens_and_shrinks_with_scoring():
    cost = ModelCost.of(LlamaConfig(**SIZES))
    assert compute_limit(cost, 0.0, 4_000, 4_000) == 1
    assert compute_limit(cost, 0.0, 4_000, 400) > compute_limit(cost, 0.0, 4_000, 800) > 5
    assert compute_limit(cost, cost.prefill_flops(4_000) / 4, 4_000, 400) < 4


def test_points_are_sorted_by_length_and_bounds_are_optional():
    series = {line.name: line for line in speedup_lines(ROWS)}
    assert list(series) == ["select, keep 0.1", "select, keep auto", "transformers"]
    assert series["select, keep 0.1"].points == [(2_048, 1.2), (8_192, 2.4), (16_384, 4.8)]
    assert series["select, keep 0.1"].bound == [(2_048, 1.5), (8_192, 3.0), (16_384, 6.0)]
    assert series["transformers"].bound == ()

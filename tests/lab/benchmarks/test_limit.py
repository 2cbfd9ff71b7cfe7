"""The speedup that operations alone would allow."""

from transformers import LlamaConfig

from specprefill_cli.lab.benchmarks.prefill import compute_limit
from specprefill_cli.models.cost import ModelCost
from tests.helpers.architectures import SIZES


def test_compute_limit_grows_with_dropped_tokens_and_shrinks_with_scoring():
    cost = ModelCost.of(LlamaConfig(**SIZES))
    assert compute_limit(cost, 0.0, 4_000, 4_000) == 1
    assert compute_limit(cost, 0.0, 4_000, 400) > compute_limit(cost, 0.0, 4_000, 800) > 5
    scoring = cost.prefill_flops(4_000) / 4
    assert compute_limit(cost, scoring, 4_000, 400) < 4

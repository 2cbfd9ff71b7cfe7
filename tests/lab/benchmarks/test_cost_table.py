"""Predicted speedups on several ranks."""

import pytest

from specprefill_cli.lab.benchmarks.cost_table import main, predicted_speedup, prefill_share
from specprefill_cli.lab.benchmarks.shapes import named_config
from specprefill_cli.models.cost import ModelCost

LENGTH = 131_072


@pytest.fixture(scope="module")
def costs():
    names = ("llama-3.1-8b", "llama-3.1-70b", "qwen2.5-1.5b")
    return {name: ModelCost.of(named_config(name, "draft"), "cuda") for name in names}


def test_a_whole_draft_makes_select_slower_than_full_on_many_ranks(costs):
    pair = costs["llama-3.1-8b"], costs["llama-3.1-70b"]
    alone = predicted_speedup(*pair, LENGTH, 0.1, 1)
    assert predicted_speedup(*pair, LENGTH, 0.1, 8, divided=False) < 1 < alone
    # Divided evenly, the draft costs the same share as on one rank.
    assert predicted_speedup(*pair, LENGTH, 0.1, 8) == pytest.approx(alone)


def test_heads_that_do_not_divide_evenly_cost_the_busiest_rank_more(costs):
    draft = costs["qwen2.5-1.5b"]
    total = draft.prefill_flops(LENGTH)
    # 12 query heads over 8 ranks: two on the busiest.
    assert total / 8 < prefill_share(draft, LENGTH, 8) < total / 6
    assert prefill_share(draft, LENGTH, 4) == pytest.approx(total / 4)
    # More ranks than heads.
    assert prefill_share(draft, LENGTH, 16) == total


def test_prints_a_row_for_each_pair(capsys):
    main("tiny:tiny", 4_096, 0.1, "1,2")
    head, _, row = capsys.readouterr().out.strip().splitlines()
    assert head == "| pair | 1 | 2 |"
    assert row.startswith("| tiny -> tiny | ")

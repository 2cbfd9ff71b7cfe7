"""Which heads each rank computes."""

import pytest

from specprefill_cli.models.head_division import can_divide, fitting_ranks, share_of

# Query heads and key-value heads of Llama 3.1 8B and 70B, and of Qwen2.5 0.5B, 1.5B and 32B.
MODELS = {"8B": (32, 8), "70B": (64, 8), "0.5B": (14, 2), "1.5B": (12, 2), "32B": (40, 8), "one": (4, 1)}


@pytest.mark.parametrize("model", MODELS)
def test_every_query_head_is_on_one_rank_together_with_its_keys(model):
    heads, key_value_heads = MODELS[model]
    for ranks in fitting_ranks(heads, key_value_heads):
        shares = [share_of(heads, key_value_heads, ranks, rank) for rank in range(ranks)]
        assert [head for queries, _ in shares for head in queries] == list(range(heads))
        for queries, keys in shares:
            # As many query heads to each key-value head: attention takes no other division.
            assert len(queries) % len(keys) == 0
            group = heads // key_value_heads
            assert {head // group for head in queries} == set(keys)
        sizes = [len(queries) for queries, _ in shares]
        assert max(sizes) - min(sizes) <= 1


def test_few_key_value_heads_do_not_limit_the_ranks():
    assert [ranks for ranks in (2, 4, 8, 16, 32) if can_divide(64, 8, ranks)] == [2, 4, 8, 16, 32]
    assert [ranks for ranks in (2, 4, 8, 16) if can_divide(14, 2, ranks)] == [2, 4, 8]
    assert [ranks for ranks in (2, 3, 6, 64) if can_divide(32, 8, ranks)] == [2]

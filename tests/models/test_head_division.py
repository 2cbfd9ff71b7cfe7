"""Which heads each rank computes."""

from types import SimpleNamespace

import pytest

from specprefill_cli.distributed import Ranks
from specprefill_cli.models.machine.head_division import local_heads
from tests.helpers.architectures import ARCHITECTURES

# Query heads and key-value heads of Llama 3.1 8B and 70B, and of Qwen2.5 0.5B and 32B, with numbers of ranks.
MODELS = {"8B": (32, 8, 8), "70B": (64, 8, 4), "0.5B": (14, 2, 2), "32B": (40, 8, 8)}


@pytest.mark.parametrize("model", MODELS)
def test_every_query_head_is_on_one_rank_together_with_its_keys(model):
    heads, key_value_heads, size = MODELS[model]
    divided = divided_model("llama", heads, key_value_heads, size)
    shares = [local_heads(divided, Ranks(rank, size)) for rank in range(size)]
    assert [head for share in shares for head in share.queries] == list(range(heads))
    assert [head for share in shares for head in share.keys] == list(range(key_value_heads))
    for share in shares:
        assert {head * key_value_heads // heads for head in share.queries} == set(share.keys)


def test_a_model_with_fused_projections_has_all_heads_on_every_rank():
    share = local_heads(divided_model("phi3", 32, 8, 2), Ranks(1, 2))
    assert (share.queries, share.keys, share.ranks.size) == (range(32), range(8), 1)


def divided_model(architecture, heads, key_value_heads, size):
    config = ARCHITECTURES[architecture]()
    config.update({"num_attention_heads": heads, "num_key_value_heads": key_value_heads})
    return SimpleNamespace(config=config, _tp_size=size)

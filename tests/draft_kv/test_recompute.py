"""A pass whose tokens leave at layers of their own, against one that runs every token through every layer."""

import pytest
import torch

from specprefill_cli.draft_kv.checkpoints import SlotKv
from specprefill_cli.draft_kv.recompute import recompute
from specprefill_cli.lab.study.controls import everything_of, fresh
from specprefill_cli.models.adapter import prefill, run
from specprefill_cli.models.cache import layer_count, new_state

COUNT = 100


def tokens(seed=0):
    return torch.randint(3, 8_000, (COUNT,), generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def mapped(model):
    """The cache of another text, as a stand-in for mapped KV."""
    return everything_of(prefill(model, tokens(seed=1), torch.arange(COUNT), 1_000)[1])


def replaced_in_each_layer(model, mapped, depths):
    """The cache after a dense pass over all tokens in which each layer sees mapped KV in place of what is not recomputed."""
    state = new_state(COUNT)

    def updated(layer, new_keys, new_values, *_, **__):
        computed = (depths > layer)[None, :, None]
        old_keys, old_values = mapped.layers[layer]
        cached = state.cache.layers[layer]
        cached.keys = torch.where(computed, new_keys[0], old_keys)[None]
        cached.values = torch.where(computed, new_values[0], old_values)[None]
        return cached.keys, cached.values

    state.cache.update = lambda keys, values, layer, *_, **__: updated(layer, keys, values)
    state.cache.layers.extend(everything_cached(mapped))
    run(model, tokens(), torch.arange(COUNT), state, last_layer=layer_count(model) - 1)
    return state


def everything_cached(mapped):
    return fresh(mapped).cache.layers


def check_equal(state, expected):
    for number, (ours, reference) in enumerate(zip(state.layers, expected.layers, strict=True)):
        torch.testing.assert_close(ours.keys, reference.keys, atol=1e-4, rtol=1e-4, msg=f"keys of layer {number}")
        torch.testing.assert_close(ours.values, reference.values, atol=1e-4, rtol=1e-4, msg=f"values of {number}")


def staircases(layers):
    """Depths [COUNT] by name: falling and rising stairs, one for each token, and none."""
    generator = torch.Generator().manual_seed(5)
    rising = torch.arange(COUNT) * (layers + 1) // COUNT
    scattered = torch.randint(0, layers + 1, (COUNT,), generator=generator)
    return {"rising": rising, "falling": rising.flip(0), "scattered": scattered, "lower": scattered.clamp(max=2)}


@pytest.mark.parametrize("name", ["rising", "falling", "scattered", "lower"])
@pytest.mark.parametrize("passes", [1, 3])
def test_a_staircase_equals_a_dense_pass_with_kv_replaced_in_each_layer(model, mapped, name, passes):
    depths = staircases(layer_count(model))[name]
    state = fresh(mapped)
    for part in (depths > 0).nonzero()[:, 0].chunk(passes):
        recompute(model, tokens()[part], part, state, logits=False, depths=depths[part])
    check_equal(state, replaced_in_each_layer(model, mapped, depths))
    assert not any(layer.slots is not None for layer in state.layers)


def test_all_layers_of_all_tokens_are_plain_prefill_and_one_layer_is_the_tokens_alone(model, mapped):
    state, all_slots = fresh(mapped), torch.arange(COUNT)
    recompute(model, tokens(), all_slots, state, logits=False, depths=torch.full((COUNT,), layer_count(model)))
    _, whole = prefill(model, tokens(), all_slots, 1_000)
    check_equal(state, whole)
    state = fresh(mapped)
    recompute(model, tokens(), all_slots, state, logits=False, depths=torch.ones(COUNT, dtype=torch.long))
    expected = fresh(SlotKv(all_slots, (everything_of(whole).layers[0], *mapped.layers[1:])))
    check_equal(state, expected)


def test_tokens_that_left_are_not_computed(model, mapped):
    """Counted at the feed-forward networks: a token runs through those below its depth, but not that of its last layer."""
    depths = staircases(layer_count(model))["scattered"]
    rows = dict.fromkeys(range(layer_count(model)), 0)
    for number, layer in enumerate(model.get_decoder().layers):
        layer.mlp.register_forward_hook(
            lambda _module, inputs, _output, number=number: rows.update({number: rows[number] + inputs[0].shape[1]})
        )
    part = (depths > 0).nonzero()[:, 0]
    recompute(model, tokens()[part], part, fresh(mapped), logits=False, depths=depths[part])
    assert rows == {number: int((depths > number + 1).sum()) for number in rows}


def test_a_layer_called_in_an_unknown_way_is_refused(model, mapped):
    layer = model.get_decoder().layers[0]
    handle = layer.register_forward_pre_hook(
        lambda _module, inputs, keywords: (inputs, {**keywords, "novel": torch.zeros(1)}),
        with_kwargs=True,
        prepend=True,
    )
    with pytest.raises(ValueError, match="layer 0 takes more than hidden states"):
        recompute(model, tokens(), torch.arange(COUNT), fresh(mapped), logits=False, depths=torch.ones(COUNT))
    handle.remove()

"""The last layer computes only the last token's output on every architecture; everything else stays the same."""

import pytest
import torch
import transformers

from specprefill_cli.models import packed
from specprefill_cli.models.adapter import prefill, run
from specprefill_cli.models.attention import ATTENTION
from specprefill_cli.models.attention_plan import LocalWindow
from specprefill_cli.models.cache import layer_keys, new_state
from specprefill_cli.models.packed import can_shorten, forward, take_rows
from specprefill_cli.models.passes import PackedContext, Pass, QueryCapture
from tests.helpers.architectures import build_model, random_tokens

LENGTH = 120


def mlp_token_counts(model, work):
    """Return the token counts of each pass through the first and the last layer's MLP."""
    counts = {}
    layers = model.get_decoder().layers
    handles = [
        layers[number].mlp.register_forward_pre_hook(
            lambda _module, states, number=number: counts.setdefault(number, []).append(states[0].shape[1])
        )
        for number in (0, -1)
    ]
    work()
    for handle in handles:
        handle.remove()
    return counts


def full_pass(model, ids, positions, **options):
    """Run all tokens through all layers."""
    state = new_state()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "pass_overhead", lambda _device: LENGTH)
        return run(model, ids, positions, state, **options), state


@pytest.mark.parametrize("gapped", [False, True])
def test_last_layer_computes_only_the_last_token(model, gapped):
    positions = torch.arange(LENGTH) + (torch.arange(LENGTH) > 50) * 30 * gapped
    ids, results = random_tokens(LENGTH), []
    counts = mlp_token_counts(model, lambda: results.append(prefill(model, ids, positions, 1_000)))
    assert counts == {0: [LENGTH], -1: [1]}
    (logits, state), (expected, reference) = results[0], full_pass(model, ids, positions)
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    for layer in range(len(state.cache.layers)):
        torch.testing.assert_close(layer_keys(state, layer), layer_keys(reference, layer), atol=1e-5, rtol=1e-5)
    assert state.positions.tolist() == positions.tolist()
    assert not any(layer.slots is not None for layer in state.cache.layers)


def test_earlier_chunks_skip_the_last_layers_mlp(model):
    counts = mlp_token_counts(model, lambda: prefill(model, random_tokens(LENGTH), torch.arange(LENGTH), 50))
    # The last 20 tokens are too few for the shortcut to pay off.
    assert counts == {0: [50, 50, 20], -1: [20]}


def test_last_layer_queries_are_captured():
    model, ids = build_model("llama"), random_tokens(LENGTH)
    capture, reference = (QueryCapture(torch.tensor([5, 60, LENGTH - 1])) for _ in range(2))
    prefill(model, ids, torch.arange(LENGTH), 1_000, capture)
    full_pass(model, ids, torch.arange(LENGTH), capture=reference)
    last = model.config.num_hidden_layers - 1
    torch.testing.assert_close(capture.layer(last), reference.layer(last), atol=1e-5, rtol=1e-5)


def test_last_token_respects_the_local_window():
    model, ids = build_model("llama"), random_tokens(LENGTH)
    local_window = LocalWindow(20, LENGTH)
    logits = run(model, ids, torch.arange(LENGTH), new_state(), local_window=local_window)
    torch.testing.assert_close(
        logits, full_pass(model, ids, torch.arange(LENGTH), local_window=local_window)[0], atol=1e-5, rtol=1e-5
    )
    assert (logits - full_pass(model, ids, torch.arange(LENGTH))[0]).abs().max() > 1e-3


def test_recomputing_in_a_filled_cache_gives_the_last_tokens_logits():
    model, ids = build_model("llama"), random_tokens(LENGTH)
    expected, state = full_pass(model, ids, torch.arange(LENGTH))
    slots = torch.arange(40, LENGTH)
    for layer in state.cache.layers:
        layer.slots = slots
    (logits,) = forward([Pass(model=model, tokens=ids[slots], positions=slots, state=state)], [slots])
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    assert state.length == LENGTH


def test_interrupted_pass_removes_hook_and_slots():
    model, state = build_model("llama"), new_state()
    last = model.get_decoder().layers[-1]

    def fail(*_):
        raise KeyboardInterrupt

    handle = last.mlp.register_forward_pre_hook(fail)
    with pytest.raises(KeyboardInterrupt):
        run(model, random_tokens(LENGTH), torch.arange(LENGTH), state)
    handle.remove()
    assert not last._forward_pre_hooks
    assert not any(layer.slots is not None for layer in state.cache.layers)


def test_stale_hook_does_not_affect_another_pass():
    model, ids, kept = build_model("llama"), random_tokens(LENGTH), torch.zeros(1, dtype=torch.long)
    stale = packed.shorten_last_layer(model, packed.PackedCache(), PackedContext([]), [1], kept)
    with stale:
        logits, state = full_pass(model, ids, torch.arange(LENGTH))
    torch.testing.assert_close(logits, full_pass(model, ids, torch.arange(LENGTH))[0])
    assert state.length == state.cache.layers[-1].get_seq_length() == LENGTH


def test_model_with_unknown_layer_names_runs_every_layer_in_full():
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=8_192, n_embd=32, n_layer=2, n_head=2, n_positions=256)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION).eval()
    ids = random_tokens(LENGTH)
    logits, state = prefill(model, ids, torch.arange(LENGTH), 50)
    torch.testing.assert_close(logits, full_pass(model, ids, torch.arange(LENGTH))[0], atol=1e-5, rtol=1e-5)
    assert state.length == LENGTH


def test_layer_with_extra_tensor_arguments_is_not_shortened():
    standard = {
        "context": object(),
        "past_key_values": object(),
        "position_ids": torch.zeros(1, 3),
        "attention_mask": None,
    }
    assert can_shorten(standard)
    assert not can_shorten({**standard, "per_layer_input": torch.zeros(1, 3, 2)})
    assert not can_shorten({"use_cache": True})
    cosine = torch.arange(6.0).view(1, 3, 2)
    rows = torch.tensor([0, 2])
    assert take_rows((cosine, cosine), rows)[1].tolist() == [[[0.0, 1.0], [4.0, 5.0]]]
    assert take_rows(None, rows) is None

"""Prefill with our attention function, compared with transformers' attention and with dense masks built from positions."""

import pytest
import torch
from transformers import DynamicCache

from specprefill_cli.models.running.adapter import prefill, run, window_layers
from specprefill_cli.models.running.attention import ATTENTION
from specprefill_cli.models.running.attention_plan import LocalWindow
from specprefill_cli.models.running.cache import new_state, rollback
from specprefill_cli.models.running.packed import SUPPORTED_TYPES
from tests.helpers.architectures import WINDOW, failing, random_tokens
from tests.helpers.visibility import visibility


@torch.no_grad()
def dense_logits(model, ids, positions, local_window=None):
    """Logits [T, V] of one pass of transformers' eager attention with explicit 4D masks and no cache."""
    masks = {}
    for window in window_layers(model.config):
        seen = visibility(positions, positions, window, local_window)
        masks[window] = torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))[None, None]
    kinds = {"full_attention": masks.get(None), "sliding_attention": masks.get(WINDOW)}
    mask = kinds if len(masks) > 1 else masks.popitem()[1]
    model.set_attn_implementation("eager")
    logits = model(ids[None], position_ids=positions[None], attention_mask=mask, use_cache=False).logits[0]
    model.set_attn_implementation(ATTENTION)
    return logits


@pytest.mark.parametrize("length", [40, 120])
def test_full_prefill_matches_transformers(model, length):
    ids = random_tokens(length)
    ours, _ = prefill(model, ids, torch.arange(length), pass_size=1_000)
    model.set_attn_implementation("sdpa")
    with torch.no_grad():
        plain = model(ids[None], past_key_values=DynamicCache(config=model.config), logits_to_keep=1).logits[0, -1]
    torch.testing.assert_close(ours, plain, atol=1e-5, rtol=1e-5)
    if length == 40 and all(window is None for window in window_layers(model.config)):
        # Too short for the last-layer shortcut: exactly the same operations.
        assert torch.equal(ours, plain)


@pytest.mark.parametrize("chunk", [1_000, 37, 16])
def test_gapped_prefill_matches_dense_mask(model, chunk):
    positions = torch.cat([torch.arange(10), torch.arange(60, 100), torch.arange(140, 150)])
    ids = random_tokens(150)[positions]
    ours, state = prefill(model, ids, positions, chunk)
    torch.testing.assert_close(ours, dense_logits(model, ids, positions)[-1], atol=1e-4, rtol=1e-4)
    assert state.positions.tolist() == positions.tolist()


# With chunks of 70 tokens and a window of 64, the second chunk's window begins inside the sinks.
@pytest.mark.parametrize("chunk", [1_000, 90, 70])
@pytest.mark.parametrize("reach", [20, 64])
def test_local_window_matches_dense_mask_and_spares_the_suffix(model, reach, chunk):
    ids, positions, window = random_tokens(300), torch.arange(300), LocalWindow(reach, 280)
    ours, _ = prefill(model, ids, positions, chunk, local_window=window)
    torch.testing.assert_close(ours, dense_logits(model, ids, positions, window)[-1], atol=1e-4, rtol=1e-4)
    everywhere, _ = prefill(model, ids, positions, chunk)
    assert not torch.allclose(ours, everywhere, atol=1e-3) or set(window_layers(model.config)) == {WINDOW}


def test_passes_of_one_or_several_tokens_after_gapped_prefill_continue_at_full_prompt_length(model):
    """On a cache longer than the sliding windows, as in decoding and in speculative verification."""
    kept, later = torch.cat([torch.arange(10), torch.arange(60, 100)]), torch.arange(150, 159)
    ids, following = random_tokens(150)[kept], random_tokens(9, seed=1)
    expected = dense_logits(model, torch.cat([ids, following]), torch.cat([kept, later]))[-9:]
    _, state = prefill(model, ids, kept, 1_000)
    # With rows, known architectures are decoded by a pass of our own.
    for rows in (1, None):
        single = [run(model, following[[n]], later[[n]], state, rows=rows).flatten() for n in range(9)]
        torch.testing.assert_close(torch.stack(single), expected, atol=1e-4, rtol=1e-4)
        rollback(state, len(kept))
    for rows in (9, 2):
        several = run(model, following, later, state, rows=rows)
        torch.testing.assert_close(several, expected[-rows:], atol=1e-4, rtol=1e-4)
        rollback(state, len(kept))


def test_known_architectures_are_decoded_without_modules_of_transformers(model):
    calls = []
    _, state = prefill(model, torch.arange(3, 9), torch.arange(6), 100)
    for layer in model.get_decoder().layers:
        layer.register_forward_hook(lambda *_: calls.append(1))
    run(model, torch.tensor([3]), torch.tensor([6]), state, rows=1)
    is_supported = model.config.model_type in SUPPORTED_TYPES and not any(window_layers(model.config))
    assert len(calls) == (0 if is_supported else len(model.get_decoder().layers))


def test_cache_grows_and_crops_without_losing_tokens(model):
    ids = random_tokens(700)
    full_result, _ = prefill(model, ids, torch.arange(700), 1_000)
    state = new_state()
    for start in range(0, 700, 100):
        run(model, ids[start : start + 100], torch.arange(start, start + 100), state)
    rollback(state, 450)
    assert [layer.get_seq_length() for layer in state.cache.layers] == [450] * 3
    assert state.positions.tolist() == list(range(450))
    again = run(model, ids[450:], torch.arange(450, 700), state)
    assert state.cache.get_seq_length() == 700
    torch.testing.assert_close(again, full_result, atol=1e-4, rtol=1e-4)


def test_an_interrupted_pass_leaves_the_state_as_it_was(model):
    ids = random_tokens(40)
    _, state = prefill(model, ids, torch.arange(40), 1_000)
    expected = run(model, ids[:1], torch.tensor([40]), state)
    rollback(state, 40)
    with failing(model.get_decoder().layers[-1].self_attn, KeyboardInterrupt):
        run(model, random_tokens(5, seed=1), torch.arange(40, 45), state)
    assert [layer.get_seq_length() for layer in state.cache.layers] == [40] * 3
    assert torch.equal(run(model, ids[:1], torch.tensor([40]), state), expected)

"""Prefill with our attention function, compared with transformers' attention and with dense masks built from positions."""

import pytest
import torch
from transformers import DynamicCache

from specprefill_cli.models.adapter import prefill, read_keys, run, window_layers
from specprefill_cli.models.attention import ATTENTION
from specprefill_cli.models.attention_plan import SINKS, LocalWindow
from specprefill_cli.models.cache import layer_keys, new_state, rollback
from specprefill_cli.models.passes import QueryCapture
from tests.helpers.architectures import WINDOW, random_tokens


def dense_mask(positions, window):
    distance = positions[:, None] - positions[None, :]
    seen = (distance >= 0) if window is None else (distance >= 0) & (distance < window)
    return torch.zeros(distance.shape).masked_fill(~seen, float("-inf"))[None, None]


@torch.no_grad()
def dense_logits(model, ids, positions):
    """Logits [T, V] of one pass of transformers' eager attention with explicit 4D masks and no cache."""
    windows = window_layers(model.config)
    if len(set(windows)) > 1:
        mask = {"full_attention": dense_mask(positions, None), "sliding_attention": dense_mask(positions, WINDOW)}
    else:
        mask = dense_mask(positions, windows[0])
    model.set_attn_implementation("eager")
    logits = model(ids[None], position_ids=positions[None], attention_mask=mask, use_cache=False).logits[0]
    model.set_attn_implementation(ATTENTION)
    return logits


@pytest.mark.parametrize("length", [40, 120])
def test_full_prefill_matches_transformers(model, length):
    ids = random_tokens(length)
    ours, _ = prefill(model, ids, torch.arange(length), chunk=1_000)
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


def local_window_masks(length, until, reach, windows):
    """Dense masks by layer window: document tokens see the last `reach` tokens and the first SINKS, the suffix sees all."""
    query, key = torch.arange(length)[:, None], torch.arange(length)[None]
    near = (key > query - reach) | (key < SINKS) | (query >= until)
    masks = {}
    for window in set(windows):
        seen = (key <= query) & (near if window is None or reach < window else key > query - window)
        if window is not None:
            seen &= (key > query - window) | ((query < until) & (key < SINKS) & (reach < window))
        masks[window] = torch.zeros(length, length).masked_fill(~seen, float("-inf"))[None, None]
    return masks


# With chunks of 70 tokens and a window of 64, the second chunk's window begins inside the sinks.
@pytest.mark.parametrize("chunk", [1_000, 90, 70])
@pytest.mark.parametrize("reach", [20, 64])
def test_local_window_matches_dense_mask_and_spares_the_suffix(model, reach, chunk):
    ids, until = random_tokens(300), 280
    ours, _ = prefill(model, ids, torch.arange(300), chunk, local_window=LocalWindow(reach, until))
    windows = window_layers(model.config)
    masks = local_window_masks(300, until, reach, windows)
    kinds = {"full_attention": masks.get(None), "sliding_attention": masks.get(WINDOW)}
    model.set_attn_implementation("eager")
    with torch.no_grad():
        dense = model(
            ids[None],
            position_ids=torch.arange(300)[None],
            attention_mask=kinds if len(set(windows)) > 1 else masks[windows[0]],
            use_cache=False,
        ).logits[0, -1]
    model.set_attn_implementation(ATTENTION)
    torch.testing.assert_close(ours, dense, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(ours, prefill(model, ids, torch.arange(300), chunk)[0], atol=1e-3) or set(windows) == {
        WINDOW
    }


def test_decoding_after_gapped_prefill_continues_at_full_prompt_length(model):
    positions = torch.cat([torch.arange(10), torch.arange(60, 100)])
    ids = random_tokens(150)[positions]
    _, state = prefill(model, ids, positions, 1_000)
    following = random_tokens(5, seed=1)
    for step, token in enumerate(following):
        logits = run(model, token[None], torch.tensor([150 + step]), state)
    everything = torch.cat([positions, torch.arange(150, 155)])
    expected = dense_logits(model, torch.cat([ids, following]), everything)[-1]
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_logits_depend_on_positions(model):
    """Without this, the tests above could pass with wrong positions."""
    ids = random_tokens(60)
    contiguous_logits, _ = prefill(model, ids, torch.arange(60), 1_000)
    gapped = torch.cat([torch.arange(30), torch.arange(70, 100)])
    gapped_logits, _ = prefill(model, ids, gapped, 1_000)
    assert (contiguous_logits - gapped_logits).abs().max() > 1e-3


def test_captured_queries_and_keys_reproduce_eager_attention(model):
    """Queries are captured after normalization and RoPE; with cached keys and the scaling they give the attention weights."""
    ids = random_tokens(40)
    capture = QueryCapture(torch.tensor([5, 20, 39]))
    _, state = prefill(model, ids, torch.arange(40), 16, capture)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = model(ids[None], output_attentions=True, use_cache=False).attentions
    for layer, expected in enumerate(weights):
        queries = capture.layer(layer)
        keys = layer_keys(state, layer).repeat_interleave(queries.shape[0] // layer_keys(state, layer).shape[0], 0)
        scores = queries @ keys.transpose(1, 2) * capture.scaling[layer]
        later = torch.arange(40)[None, :] > capture.positions[:, None]
        probabilities = scores.masked_fill(later, float("-inf")).softmax(-1)
        torch.testing.assert_close(probabilities, expected[0][:, capture.positions], atol=1e-5, rtol=1e-4)


def test_every_layer_receives_the_context_and_no_mask(model):
    """Transformers must pass our keyword argument, and None as the mask, to every attention call."""
    seen = []
    import specprefill_cli.models.attention as attention

    def spy(module, query, key, value, attention_mask, **keywords):
        seen.append((module.layer_idx, attention_mask, keywords["context"] is not None))
        return attention.attend(module, query, key, value, attention_mask, **keywords)

    attention.AttentionInterface.register("spy", spy)
    attention.AttentionMaskInterface.register("spy", attention.no_mask)
    model.set_attn_implementation("spy")
    prefill(model, random_tokens(20), torch.arange(20), 8)
    assert [layer for layer, _, _ in seen] == [0, 1, 2] * 3
    assert all(mask is None and given for _, mask, given in seen)


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


def test_multi_token_pass_matches_single_token_passes(model):
    """On a gapped cache longer than the sliding windows, as in speculative verification."""
    positions = torch.cat([torch.arange(10), torch.arange(60, 100)])
    _, state = prefill(model, random_tokens(150)[positions], positions, 1_000)
    following = random_tokens(9, seed=1)
    single = torch.stack([run(model, following[[n]], torch.tensor([150 + n]), state) for n in range(9)])
    rollback(state, len(positions))
    wide = run(model, following, torch.arange(150, 159), state, rows=9)
    torch.testing.assert_close(wide, single, atol=1e-4, rtol=1e-4)
    rollback(state, len(positions))
    torch.testing.assert_close(
        run(model, following, torch.arange(150, 159), state, rows=2), single[-2:], atol=1e-4, rtol=1e-4
    )


def test_an_interrupted_pass_leaves_the_state_as_it_was(model, monkeypatch):
    ids = random_tokens(40)
    _, state = prefill(model, ids, torch.arange(40), 1_000)
    expected = run(model, ids[:1], torch.tensor([40]), state)
    rollback(state, 40)
    last = state.cache.layers[-1]

    def interrupt(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(last, "update", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(model, random_tokens(5, seed=1), torch.arange(40, 45), state)
    monkeypatch.undo()
    assert [layer.get_seq_length() for layer in state.cache.layers] == [40] * 3
    assert torch.equal(run(model, ids[:1], torch.tensor([40]), state), expected)


def test_decoding_does_not_copy_the_cache(model):
    _, state = prefill(model, random_tokens(100), torch.arange(100), 1_000)
    address = state.cache.layers[0].keys.data_ptr()
    for step in range(5):
        run(model, torch.tensor([5]), torch.tensor([100 + step]), state)
    assert state.cache.layers[0].keys.data_ptr() == address


def test_logits_are_computed_for_the_last_token_only(model, monkeypatch):
    calls, head = [], model.get_output_embeddings()
    head.register_forward_hook(lambda _module, inputs, _output: calls.append(inputs[0].shape[1]))
    prefill(model, random_tokens(50), torch.arange(50), 20)
    assert calls == [1]


def test_early_exit_pass_matches_full_pass_in_lower_layers(model):
    ids = random_tokens(40)
    capture, full_capture = QueryCapture(torch.arange(30, 40)), QueryCapture(torch.arange(30, 40))
    state = new_state()
    read_keys(model, ids, torch.arange(40), 16, 1, capture, state)
    _, full_result = prefill(model, ids, torch.arange(40), 16, full_capture)
    for layer in (0, 1):
        torch.testing.assert_close(layer_keys(state, layer), layer_keys(full_result, layer))
        torch.testing.assert_close(capture.layer(layer), full_capture.layer(layer))
    assert len(state.cache.layers) < 3 or state.cache.layers[2].get_seq_length() == 0
    assert 2 not in capture.queries

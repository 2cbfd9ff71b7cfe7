"""Draft KV on every architecture: injection, rotary embedding, recompute, maps and rejected input."""

import dataclasses
import json
from types import SimpleNamespace

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from specprefill_cli.draft_kv import projection
from specprefill_cli.draft_kv.checkpoints import SlotKv, checkpoint_slots, nearest_errors
from specprefill_cli.draft_kv.mapped_cache import mapped_state, recompute, score_and_map
from specprefill_cli.draft_kv.projection import (
    KvMap,
    LayerFit,
    find_map,
    load_calibration,
    pair_calibration,
    pair_identity,
    set_calibration,
)
from specprefill_cli.draft_kv.raw_kv import embedded_states, finished_keys, raw_keys_values, split_heads
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.lab.calibration import draft_kv as kv_calibration
from specprefill_cli.lab.calibration.draft_kv import all_states, calibrate_kv
from specprefill_cli.lab.calibration.files import save_maps
from specprefill_cli.lab.calibration.kv_fit import Gram, fit_map
from specprefill_cli.lab.study.controls import cache_of
from specprefill_cli.models.running.adapter import prefill, run
from specprefill_cli.models.running.cache import layer_count, layer_keys
from specprefill_cli.record import Fate
from tests.draft_kv.helpers import TEXT, every_architecture, prefilled, request_for
from tests.helpers.architectures import ARCHITECTURES, SIZES, build_model, random_tokens

SCALINGS = {
    "default": {},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 512},
}


@torch.inference_mode()
def native_keys_values(model, ids):
    """Compute the keys and values of every layer outside the model, from the inputs of its attention."""
    positions = torch.arange(len(ids))
    keys_values = []
    states = all_states(SimpleNamespace(model=model), ids, range(layer_count(model)))
    for layer in range(layer_count(model)):
        keys, values = raw_keys_values(model, layer, states[layer])
        values = split_heads(model, layer, values)
        keys_values.append((finished_keys(model, layer, keys, positions), values))
    return keys_values


def test_injected_native_kv_reproduces_full_prefill_logits(model):
    ids = random_tokens(90)
    expected, native = prefill(model, ids, torch.arange(90), 1_000)
    injected = native_keys_values(model, ids[:80])
    for layer, (keys, _) in enumerate(injected):
        torch.testing.assert_close(keys, layer_keys(native, layer)[:, :80], atol=1e-5, rtol=1e-4)
    state = cache_of(SlotKv(torch.arange(80), tuple(injected)))
    logits = run(model, ids[80:], torch.arange(80, 90), state)
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("scaling", sorted(SCALINGS))
@torch.inference_mode()
def test_finished_keys_match_the_models_rotary_embedding(scaling, monkeypatch):
    rope = {"rope_type": scaling, "rope_theta": 10_000.0, **SCALINGS[scaling]}
    monkeypatch.setitem(ARCHITECTURES, "scaled", lambda: transformers.LlamaConfig(**SIZES, rope_parameters=rope))
    model = build_model("scaled")
    ids, positions = random_tokens(40), torch.cat([torch.arange(20), torch.arange(700, 720)])
    _, state = prefill(model, ids, positions, 1_000)
    keys, _ = raw_keys_values(model, 0, embedded_states(model, ids))
    torch.testing.assert_close(finished_keys(model, 0, keys, positions), layer_keys(state, 0), atol=1e-5, rtol=1e-4)
    wrong = finished_keys(model, 0, keys, positions + 1)
    assert (wrong - layer_keys(state, 0)).abs().max() > 1e-2


def test_recompute_of_scattered_slots_is_exact_and_causal(model):
    """Corrupt scattered slots of a cache and recompute them: only the tokens before a slot may affect it."""
    ids = random_tokens(100)
    _, native = prefill(model, ids, torch.arange(100), 1_000)
    corrupted = [
        (layer_keys(native, number).clone(), native.cache.layers[number].values[0].clone())
        for number in range(layer_count(model))
    ]
    slots = torch.cat([torch.arange(30, 50), torch.arange(70, 75)])
    for keys, values in corrupted:
        keys[:, slots], values[:, slots] = 9.0, 9.0
        # Everything after the last recomputed token is garbage that no recomputed token may attend to.
        keys[:, 75:], values[:, 75:] = 1e4, 1e4
    state = cache_of(SlotKv(torch.arange(100), tuple(corrupted)))
    logits = recompute(model, ids[slots], slots, state)
    for layer in range(layer_count(model)):
        computed, expected = (layer_keys(of, layer)[:, :75] for of in (state, native))
        torch.testing.assert_close(computed, expected, atol=1e-4, rtol=1e-4)
    expected, _ = prefill(model, ids[:75], torch.arange(75), 1_000)
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


@every_architecture
@pytest.mark.parametrize("mode", ["draft-kv", "hybrid"])
def test_recomputing_everything_equals_full_prefill(random_session, mode):
    ours = prefilled(random_session, mode, recompute=1.0, keep=1.0, look_ahead=2)
    expected = prefilled(random_session, "full")
    torch.testing.assert_close(ours.logits, expected.logits, atol=1e-4, rtol=1e-4)
    assert ours.plan.kept_ratio == 1.0


@pytest.mark.parametrize("mode", ["draft-kv", "hybrid"])
def test_a_bad_map_changes_the_logits_and_reports_its_risk(random_session, mode):
    """Control for the test above: with little recomputed, the logits must differ from full prefill."""
    ours = prefilled(random_session, mode, recompute=0.1, keep=0.1, look_ahead=2)
    expected = prefilled(random_session, "full")
    assert (ours.logits - expected.logits).abs().max() > 1e-2
    spans = ours.plan.spans
    assert {span.fate for span in spans} - {Fate.RECOMPUTE}
    assert all(span.risk >= 0 for span in spans)
    assert ours.plan.checkpoints > 0
    assert sum(span.end - span.start for span in spans) == ours.plan.document[1] - ours.plan.document[0]


@pytest.mark.slow
@pytest.mark.parametrize("random_pair", ["llama", "qwen3", "gemma3", "phi3"], indirect=True)
def test_fitted_map_beats_the_mean_and_survives_saving(random_pair, random_session, tmp_path):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(300, 8_000, (1_200, 12), generator=generator)
    text = " ".join(map(random_pair.target.tokenizer.decode, ids))
    calibration = calibrate_kv(random_pair, [text], lambda _: None)
    assert calibration.kv_map.embedding
    assert all(0 < fit.key_error < 1.05 and 0 < fit.value_error < 1.05 for fit in calibration.kv_map.fits)
    assert calibration.kv_map.fits[0].value_error < 0.9
    save_maps(calibration, tmp_path)
    loaded = load_calibration(tmp_path, random_pair)
    torch.testing.assert_close(loaded.kv_map.weights[2].float(), calibration.kv_map.weights[2], atol=1e-2, rtol=1e-2)
    assert dataclasses.replace(loaded.kv_map, weights={}) == dataclasses.replace(calibration.kv_map, weights={})


@pytest.mark.parametrize("random_pair", ARCHITECTURES, indirect=True)
def test_maps_read_the_embedding(random_session):
    """A map whose weights are the first layer's own projections gives the second layer the first one's raw KV."""
    pair, request = random_session.pair, request_for(random_session)
    model, kv_map = pair.target.model, pair_calibration(pair).kv_map
    size = pair.target.config.get_text_config().hidden_size
    draft_size = len(kv_map.weights[1]) - 1
    layer_weights = torch.cat(raw_keys_values(model, 0, torch.eye(size)), dim=-1)
    zeros = torch.zeros(draft_size + 1, layer_weights.shape[1])
    weights = {layer: torch.cat([layer_weights * (layer == 1), zeros]) for layer in kv_map.weights}
    reading = dataclasses.replace(kv_map, weights=weights, embedding=True)
    count = request.prompt.length
    states = {layer: torch.randn(count, draft_size // 2) for layer in kv_map.draft_layers}
    keys, values = raw_keys_values(model, 0, embedded_states(model, request.prompt.tokens))
    state = mapped_state(request, reading, states)
    expected = finished_keys(model, 1, keys, torch.arange(count))
    torch.testing.assert_close(layer_keys(state, 1), expected, atol=1e-4, rtol=1e-4)
    expected = split_heads(model, 1, values)
    torch.testing.assert_close(state.layers[1].values[0], expected, atol=1e-4, rtol=1e-4)


def test_a_stopped_calibration_goes_on_where_it_was_saved(random_pair, tmp_path, monkeypatch):
    monkeypatch.setattr(kv_calibration, "SAVED", 4)
    monkeypatch.setattr(kv_calibration, "ROWS_PER_INPUT", 1)
    texts, told = [f"{number} {TEXT * 7}" for number in range(12)], []

    def stop(message):
        if message.endswith("sequence 7"):
            raise KeyboardInterrupt

    expected = calibrate_kv(random_pair, texts, lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        calibrate_kv(random_pair, texts, stop, progress=tmp_path / "sums.pt")
    resumed = calibrate_kv(random_pair, texts, told.append, progress=tmp_path / "sums.pt")
    assert told[0].endswith("sequence 5")
    assert (resumed.rows, resumed.kv_map.fits) == (expected.rows, expected.kv_map.fits)
    told.clear()
    calibrate_kv(random_pair, texts[1:], told.append, progress=tmp_path / "sums.pt")
    assert told[0].endswith("sequence 1"), "the sums of another text"


def test_rejects_too_little_calibration_text(random_pair, monkeypatch):
    with pytest.raises(SpecprefillError, match="gives 0 sequences of 1024 tokens; draft KV needs at least 10"):
        calibrate_kv(random_pair, [TEXT * 2], lambda _: None)
    monkeypatch.setattr(kv_calibration, "ROWS_PER_INPUT", 1_000)
    message = r"gives [\d,]+ tokens to fit on; this pair needs at least [\d,]+: give more"
    with pytest.raises(SpecprefillError, match=message):
        calibrate_kv(random_pair, [TEXT * 60], lambda _: None)


def test_rejects_calibrations_of_other_pairs_and_newer_and_damaged_files(random_pair, tmp_path):
    save_maps(pair_calibration(random_pair), tmp_path)
    assert len({path.stat().st_mode for path in tmp_path.iterdir()}) == 1, "both files have the same permissions"
    assert load_calibration(tmp_path, random_pair).identity == pair_identity(random_pair)
    assert load_calibration(tmp_path / "none", random_pair) is None
    swapped = dataclasses.replace(random_pair, draft=random_pair.target)
    message = r"made for another pair \(draft_weights .*calibrate --pair random --text"
    with pytest.raises(SpecprefillError, match=message):
        load_calibration(tmp_path, swapped)
    description = json.loads((tmp_path / "kv_map.json").read_text())
    newer = r"version 3; this specprefill reads versions up to 2.*recreate it with"
    for content, message in ((description | {"schema": 3}, newer), ([], "not a file of draft-KV maps")):
        (tmp_path / "kv_map.json").write_text(json.dumps(content))
        with pytest.raises(SpecprefillError, match=message):
            load_calibration(tmp_path, random_pair)
    (tmp_path / "kv_map.json").write_text(json.dumps(description))
    tensors = load_file(tmp_path / "kv_map.safetensors")
    save_file(dict(list(tensors.items())[1:]), tmp_path / "kv_map.safetensors")
    with pytest.raises(SpecprefillError, match="not a file of draft-KV maps"):
        load_calibration(tmp_path, random_pair)


def test_rejects_a_missing_map(random_session):
    set_calibration(random_session.pair, None)
    message = r"this pair has no map of draft KV yet.*calibrate --pair random --text FILES"
    with pytest.raises(SpecprefillError, match=message):
        prefilled(random_session, "hybrid")


def test_ridge_regression_recovers_a_linear_map_and_its_draft_layer():
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(600, 3 * 8, generator=generator)
    truth = torch.randn(8, 6, generator=generator)
    outputs = {4: inputs[:, 8:16] @ truth + 2.0}
    fitted, held_out = Gram.empty(24, {4: 6}), Gram.empty(24, {4: 6})
    fitted.add(inputs[:400], {4: outputs[4][:400]})
    held_out.add(inputs[400:], {4: outputs[4][400:]})
    kv_map = fit_map(fitted, held_out, draft_layers=[1, 5, 7], own_size=0)
    assert kv_map.fits[0].draft_layers == (1, 5, 7)
    assert kv_map.fits[0].key_error < 1e-4
    keys, values = kv_map.apply(4, dict(zip((1, 5, 7), inputs[:10].split(8, dim=1), strict=True)), None)
    torch.testing.assert_close(torch.cat([keys, values], dim=1), outputs[4][:10], atol=1e-2, rtol=1e-2)


def test_a_map_reads_a_long_prompt_in_parts(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    weight, states = torch.randn(9, 12, generator=generator), {5: torch.randn(100, 8, generator=generator)}
    kv_map = KvMap((LayerFit(4, (5,), 0.1, 0.0, 0.0),), {4: weight})
    expected = states[5] @ weight[:-1] + weight[-1]
    monkeypatch.setattr(projection, "ROWS", 16)
    keys, values = kv_map.apply(4, states, None)
    torch.testing.assert_close(torch.cat([keys, values], dim=1), expected)


def test_checkpoints_are_spread_and_tokens_use_the_nearest_error():
    importance = torch.zeros(640)
    importance[100] = 1
    slots = checkpoint_slots((10, 650), importance)
    assert 110 in slots
    assert slots.diff().max() <= 64
    for tokens in (1, 31, 33, 500):
        slots = checkpoint_slots((7, 7 + tokens), torch.rand(tokens))
        assert 7 <= int(slots.min()) <= int(slots.max()) < 7 + tokens
    errors = torch.tensor([[1.0, 2.0]])
    assert nearest_errors(errors, torch.tensor([10, 20]), torch.arange(8, 24)).tolist() == [[1.0] * 8 + [2.0] * 8]


@pytest.mark.parametrize("window", [None, 40])
def test_mapping_uses_the_draft_window_of_the_calibration(random_session, window):
    pair = random_session.pair
    calibration = pair_calibration(pair)
    kv_map = dataclasses.replace(calibration.kv_map, window=window)
    set_calibration(pair, dataclasses.replace(calibration, kv_map=kv_map))
    request = request_for(random_session, mode="draft-kv", draft_window="off")
    kv_map = find_map(request, "draft-kv")
    _, state = score_and_map(request, kv_map)
    start, end = request.prompt.document
    states = all_states(pair.draft, request.prompt.tokens[:end], kv_map.draft_layers, window)
    raw, _ = kv_map.apply(1, states, None)
    expected = finished_keys(pair.target.model, 1, raw, torch.arange(end))
    torch.testing.assert_close(layer_keys(state, 1)[:, start:end], expected[:, start:], atol=1e-4, rtol=1e-4)
    assert end - start > 4 * 40

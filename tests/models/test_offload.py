"""Models that do not fit the devices: offloading to CPU memory warns, offloading to disk is an error.

Without a GPU, layers on disk stand in for layers in CPU memory: the same hooks load their weights for each pass.
"""

from types import SimpleNamespace

import pytest
import torch
import transformers

from specprefill_cli.draft_kv.raw_kv import embedded_states, finished_keys, raw_keys_values
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.loaded import LoadedModel
from specprefill_cli.models.loading import check_model
from specprefill_cli.models.machine.placement import Placement, draft_placement, prefer_one_gpu, spread
from specprefill_cli.models.running.adapter import prefill
from specprefill_cli.models.running.attention import ATTENTION
from specprefill_cli.models.running.cache import device_of
from specprefill_cli.prefill.calibration import weights_fingerprint
from tests.helpers.architectures import build_model

DEVICE_MAP = {
    **dict.fromkeys(("model.embed_tokens", "model.layers.0", "model.layers.2"), "disk"),
    **dict.fromkeys(("model.layers.1", "model.norm", "model.rotary_emb", "lm_head"), "cpu"),
}


@pytest.fixture
def offloaded(tmp_path):
    build_model("llama").save_pretrained(tmp_path / "model")
    return transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", device_map=DEVICE_MAP, offload_folder=tmp_path / "rest", attn_implementation=ATTENTION
    ).eval()


def test_offloaded_model_computes_the_same(offloaded):
    in_memory = build_model("llama")
    assert any(parameter.is_meta for parameter in offloaded.parameters())
    assert LoadedModel("offloaded", offloaded, None, 4_096, frozenset()).devices == {torch.device("cpu")}
    tokens, positions = torch.arange(3, 30), torch.arange(27)
    expected, state = prefill(in_memory, tokens, positions, 100)
    logits, _ = prefill(offloaded, tokens, positions, 100)
    torch.testing.assert_close(logits, expected)
    assert weights_fingerprint(offloaded) == weights_fingerprint(in_memory)
    for model in (offloaded, in_memory):
        keys, _ = raw_keys_values(model, 0, embedded_states(model, tokens))
        torch.testing.assert_close(finished_keys(model, 0, keys, positions), state.cache.layers[0].keys[0])


def test_module_device_is_where_its_hook_executes():
    module = torch.nn.Linear(2, 2)
    assert device_of(module) == torch.device("cpu")
    module._hf_hook = SimpleNamespace(execution_device=1)
    assert device_of(module) == torch.device("cuda", 1)


def test_cpu_offload_warns_and_disk_offload_is_rejected():
    model = build_model("llama")
    loaded = LoadedModel("big", model, None, 4_096, frozenset())
    model.hf_device_map = {"": "cpu"}
    check_model(model, "big")
    assert loaded.warnings == ["big: no part of it fits the GPUs; all of it runs on the CPU"]
    model.hf_device_map = {"model.layers.0": 0, "model.layers.1": 1}
    assert loaded.warnings == []
    model.hf_device_map = {"model.layers.0": 0, "model.layers.1": 1, "model.layers.2": "cpu"}
    check_model(model, "big")
    (warning,) = loaded.warnings
    assert warning.startswith("big: 1 of 3 parts do not fit the GPUs")
    for device_map_with_disk in ({"model.layers.0": 0, "model.layers.1": "disk"}, {"": "disk"}):
        model.hf_device_map = device_map_with_disk
        with pytest.raises(SpecprefillError, match="big: does not fit the devices given"):
            check_model(model, "big")


def test_only_auto_placement_includes_cpu_memory(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda gpu: ((gpu + 1) * 1_000, 10_000))
    assert spread([0, 1]).max_memory == {0: 800, 1: 1_600}
    auto = spread([0, 1], with_cpu=True)
    assert set(auto.max_memory) == {0, 1, "cpu"}
    assert auto.gpus == (0, 1)
    assert draft_placement(auto) == Placement({"": "cuda:1"})


def test_one_gpu_is_filled_before_a_model_is_spread(monkeypatch):
    auto = Placement("auto", {0: 800, 1: 1_600, "cpu": 10_000})
    assert prefer_one_gpu(auto, 800) == Placement({"": "cuda:0"})
    assert prefer_one_gpu(auto, 801) == Placement({"": "cuda:1"})
    assert prefer_one_gpu(auto, 1_601) is auto
    chosen = Placement({"": "cuda:3"})
    assert prefer_one_gpu(chosen, 10**12) is chosen

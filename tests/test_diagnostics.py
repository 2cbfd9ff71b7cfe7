"""What works with a pair, judged by configurations and tokenizers; memory counted without weights."""

import copy

import pytest
import torch

from specprefill_cli.diagnostics import State, check_pair
from specprefill_cli.models.loaded import ModelOutline
from specprefill_cli.models.loading import load_outline
from specprefill_cli.models.machine.memory_plan import cache_bytes, weight_bytes
from specprefill_cli.models.machine.placement import Placement
from specprefill_cli.models.running.adapter import prefill
from specprefill_cli.prompting import load_template
from tests.helpers.architectures import ARCHITECTURES, build_model


def outline(tokenizer, name="llama", **changes):
    config = ARCHITECTURES[name]()
    for key, value in changes.items():
        setattr(config, key, value)
    return ModelOutline(f"random-{name}", config, tokenizer, "cpu")


def states(draft, target):
    return {check.name: check for check in check_pair(draft, target, load_template("tiny"))}


def test_two_tokenizers_and_a_smaller_context_are_limits(tokenizer):
    checks = states(outline(tokenizer), outline(tokenizer))
    assert {check.state for check in checks.values()} == {State.OK}
    assert "4,096" in checks["context"].detail
    other = copy.deepcopy(tokenizer)
    other.add_tokens(["<other>"])
    limited = states(outline(other, max_position_embeddings=1_000), outline(tokenizer))
    assert limited["tokenizer"].state is limited["context"].state is State.LIMITED
    assert "up to 1,000 tokens (draft 1,000, target 4,096)" in limited["context"].detail


def test_an_outline_is_what_loading_starts_from():
    loaded = load_outline("tiny:target", Placement(None), offline=True)
    assert (loaded.context, loaded.device) == (16_384, "cpu")
    assert load_outline("tiny:draft", Placement({"": "cuda:1"}), offline=True).device == "cuda"
    assert Placement("auto", {0: 1, 2: 1}).device_type == "cuda"
    assert Placement({"": "cuda:1"}).gpus == (1,)
    assert Placement(None).gpus == ()


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_weights_are_counted_without_memory(name):
    model = build_model(name)
    config = ARCHITECTURES[name]()
    assert weight_bytes(config, torch.bfloat16) == 2 * model.num_parameters()


def test_a_quantised_checkpoint_is_counted_with_its_own_bits():
    config = ARCHITECTURES["llama"]()
    unquantised, model = weight_bytes(config, torch.bfloat16), build_model("llama")
    packed = sum(weight.numel() for layer in model.model.layers for weight in layer.parameters() if weight.dim() > 1)
    config.quantization_config = {"quant_method": "gptq", "bits": 4}
    assert weight_bytes(config, torch.bfloat16) == unquantised - packed * 3 // 2


def test_the_cache_of_a_model_is_counted(tokenizer):
    model = build_model("llama")
    _, state = prefill(model, torch.arange(10), torch.arange(10), 10)
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in state.cache.layers)
    assert cache_bytes(model.config, 10, torch.float32) == held

"""LoRA adapters: merged as the library `peft` merges them, and refused by name where they are something else."""

import json
import shutil

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.files import BUNDLED_FOLDER
from specprefill_cli.models.loading import load_model, load_pair
from specprefill_cli.models.machine.placement import Placement
from specprefill_cli.models.sources.lora import merge_adapter, read_adapter
from specprefill_cli.models.sources.pairs import Pair, chosen_pair
from specprefill_cli.settings import Settings
from tests.helpers.architectures import build_model
from tests.helpers.gguf_files import converted, write_gguf

LAYER = "model.layers.0.self_attn.q_proj"


def write_adapter(model, folder, **options):
    """Save a random adapter of a model, and return the model with it as `peft` merges it."""
    torch.manual_seed(3)
    config = peft.LoraConfig(
        r=4, lora_alpha=6, target_modules=["q_proj", "down_proj"], init_lora_weights=False, **options
    )
    wrapped = peft.get_peft_model(model, config)
    wrapped.save_pretrained(folder)
    return wrapped.merge_and_unload()


@pytest.fixture
def folder(tmp_path):
    write_adapter(build_model("llama"), tmp_path / "adapter")
    return tmp_path / "adapter"


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
def test_weights_are_those_that_peft_merges(tmp_path, name):
    expected = write_adapter(build_model(name), tmp_path).state_dict()
    model = build_model(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    merge_adapter(model, read_adapter(tmp_path, "mine"))
    changed = [key for key, value in model.state_dict().items() if not torch.equal(value, before[key])]
    assert len(changed) == 2 * model.config.get_text_config().num_hidden_layers
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, expected[key], atol=1e-6, rtol=1e-5)


def test_a_pair_loads_with_its_adapter(tmp_path):
    target = load_model("tiny:target", Placement(None), "float32", offline=True).model
    expected = write_adapter(target, tmp_path / "adapter").state_dict()
    pair = Pair("custom", "tiny:draft", "tiny:target", adapter=str(tmp_path / "adapter"))
    loaded = load_pair(pair, Placement(None), Settings(offline=True), with_draft=False, with_target=True)
    for key, value in loaded.loaded_target.model.state_dict().items():
        torch.testing.assert_close(value, expected[key], atol=1e-6, rtol=1e-5)


def test_conversion_merges_before_it_rounds(cache, tmp_path):
    file = write_gguf(tmp_path / "small.gguf")
    plain = converted(file)
    write_adapter(load_model(str(plain), Placement(None), "float32", offline=True).model, tmp_path / "adapter")
    adapter, merged = read_adapter(tmp_path / "adapter", "mine"), converted(file, adapter=tmp_path / "adapter")
    before, after = (load_file(folder / "model-00000.safetensors") for folder in (plain, merged))
    assert {key for key in before if not torch.equal(before[key], after[key])} == {
        f"{module}.weight" for module in adapter.factors
    }
    change = after[f"{LAYER}.weight"].float() - before[f"{LAYER}.weight"].float()
    narrow, wide = adapter.factors[LAYER]
    torch.testing.assert_close(change, adapter.scale * wide @ narrow, atol=2e-2, rtol=2e-2)


OTHER_KINDS = {"peft_type": "LOHA", "bias": "all", "modules_to_save": ["lm_head"], "rank_pattern": {"q_proj": 2}}
FLAGS = dict.fromkeys(("use_dora", "use_rslora", "fan_in_fan_out"), True)
TWO = "has not two factors of rank 4"


@pytest.mark.parametrize(("key", "value"), {**OTHER_KINDS, **FLAGS}.items())
def test_other_kinds_of_adapter_are_named(folder, key, value):
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {key: value}))
    with pytest.raises(SpecprefillError, match=f"adapter mine: {key} is .*; give a plain LoRA adapter, or merge it"):
        read_adapter(folder, "mine")


@pytest.mark.parametrize(("change", "message"), [
    (lambda given: {name: part for name, part in given.items() if not name.endswith("q_proj.lora_B.weight")}, TWO),
    (lambda given: {name: part[:3] if ".lora_A." in name else part[:, :3] for name, part in given.items()}, TWO),
    (lambda given: given | {f"base_model.model.{LAYER}.lora_magnitude_vector": torch.ones(4)}, "is no part of a plain"),
])  # fmt: skip
def test_tensors_that_do_not_fit_are_named(folder, change, message):
    path = folder / "adapter_model.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in change(load_file(path)).items()}, path)
    with pytest.raises(SpecprefillError, match=message):
        read_adapter(folder, "mine")


def test_another_model_is_named(folder, tmp_path):
    small = build_model("llama", hidden_size=32, intermediate_size=48)
    message = r"adapter mine: model\.layers\.0\..* is \[.*\] there and \[.*\] in the adapter"
    with pytest.raises(SpecprefillError, match=message):
        merge_adapter(small, read_adapter(folder, "mine"))
    with pytest.raises(SpecprefillError, match="adapter mine: the model has no layer"):
        merge_adapter(build_model("llama", num_hidden_layers=1), read_adapter(folder, "mine"))
    quantized = build_model("llama")
    quantized.model.layers[0].self_attn.q_proj.weight = torch.nn.Parameter(
        torch.zeros(4, 4, dtype=torch.uint8), requires_grad=False
    )
    with pytest.raises(SpecprefillError, match="only whole, unquantised weights"):
        merge_adapter(quantized, read_adapter(folder, "mine"))


def test_a_missing_or_damaged_adapter_is_one_line(folder):
    (folder / "adapter_model.safetensors").write_bytes(b"nothing")
    message = r"adapter mine: cannot be read \(.*; give a folder with adapter_config\.json"
    with pytest.raises(SpecprefillError, match=message):
        read_adapter(folder, "mine")
    shutil.rmtree(folder)
    with pytest.raises(SpecprefillError, match=r"adapter mine: cannot be read \("):
        read_adapter(folder, "mine")


def test_the_option_replaces_the_pairs_adapter(folder):
    assert chosen_pair(Settings(pair="tiny", adapter=str(folder))).adapter == str(folder)
    pair = chosen_pair(Settings(pair="smollm2", target=str(BUNDLED_FOLDER / "target"), adapter="a/b"))
    assert (pair.target, pair.adapter) == (str(BUNDLED_FOLDER / "target"), "a/b")

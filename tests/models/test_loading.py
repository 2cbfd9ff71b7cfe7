"""Loading models from folders, and the errors for models that are not supported."""

import types
from unittest.mock import Mock

import psutil
import pytest
import torch
import transformers
from safetensors.torch import load as load_bytes
from safetensors.torch import load_file, save_file

from specprefill_cli.documents.collect import read_documents
from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.files import BUNDLED_FOLDER, packaged_folder
from specprefill_cli.models import loading
from specprefill_cli.models.loading import load_model
from specprefill_cli.models.machine import placement
from specprefill_cli.models.machine.placement import Placement, choose_dtype, choose_placement
from specprefill_cli.models.running.adapter import prefill
from specprefill_cli.models.running.attention import ATTENTION, avoid_cudnn
from specprefill_cli.models.running.int8 import load_written
from specprefill_cli.models.running.supported import check_config, context_length
from specprefill_cli.models.sources import pairs
from specprefill_cli.models.sources.pairs import (
    FOLDER_VARIABLE,
    HEADS_FILE,
    PAIRS,
    chosen_pair,
    draft_folder,
    find_pair,
)
from specprefill_cli.models.sources.tokenizers import count_tokens, counting_encoding
from specprefill_cli.settings import Settings
from tests.helpers.architectures import SIZES, build_model

CPU = Placement(None)
SMALL = transformers.LlamaConfig(hidden_size=64)


def test_folder_loads_with_our_attention(llama):
    loaded = load_model(str(llama), CPU, "auto", offline=True)
    assert loaded.model.config._attn_implementation == ATTENTION
    assert (loaded.context, loaded.model.dtype, loaded.device) == (4_096, torch.float32, "cpu")
    assert loaded.tokenizer.eos_token_id in loaded.stop_tokens
    logits, _ = prefill(loaded.model, torch.arange(3, 30), torch.arange(27), 100)
    expected, _ = prefill(build_model("llama"), torch.arange(3, 30), torch.arange(27), 100)
    torch.testing.assert_close(logits, expected)


@pytest.mark.parametrize(("kind", "hip", "expected"), [("cuda", None, 1), ("cuda", "6.4", 0), ("cpu", None, 0)])
def test_cudnn_attention_is_disabled_on_nvidia_gpus_only(monkeypatch, kind, hip, expected):
    calls = []
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", calls.append)
    avoid_cudnn(kind)
    assert calls == [False] * expected


def test_cudnn_attention_is_disabled_before_weights_are_placed(llama, monkeypatch):
    refuse = Mock(side_effect=SpecprefillError("cuDNN is disabled here"))
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", refuse)
    monkeypatch.setattr(loading, "check_memory", lambda *_: None)
    with pytest.raises(SpecprefillError, match="cuDNN is disabled here"):
        load_model(str(llama), Placement({"": "cuda:0"}), "float32", offline=True)


def test_vision_language_models_load_as_language_models(tokenizer, tmp_path):
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = {"model_type": "pixtral", "image_size": 28, "patch_size": 14, **sizes}
    text = transformers.MistralConfig(**SIZES, sliding_window=None).to_dict()
    config = transformers.Mistral3Config(text_config=text, vision_config=vision)
    torch.manual_seed(0)
    transformers.AutoModelForImageTextToText.from_config(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path), CPU, "float32", offline=True)
    logits, state = prefill(loaded.model, torch.arange(3, 30), torch.arange(27), 10)
    assert logits.shape == (SIZES["vocab_size"],)
    assert state.length == 27


def test_yarn_extends_the_context():
    rope = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32_768}
    extended = transformers.Qwen2Config(max_position_embeddings=32_768, rope_parameters=rope)
    assert context_length(extended) == 131_072
    assert context_length(transformers.Qwen2Config(max_position_embeddings=32_768)) == 32_768


def test_rejects_pickled_weights(llama):
    torch.save(build_model("llama").state_dict(), llama / "pytorch_model.bin")
    (llama / "model.safetensors").unlink()
    with pytest.raises(SpecprefillError, match="cannot be loaded"):
        load_model(str(llama), CPU, "auto", offline=True)


def test_rejects_soft_capped_attention(tmp_path):
    transformers.Gemma2Config(**SIZES).save_pretrained(tmp_path)
    with pytest.raises(SpecprefillError, match="soft-capping"):
        load_model(str(tmp_path), CPU, "auto", offline=True)


def test_rejects_layers_without_their_own_plain_cache():
    config = transformers.Qwen2Config(**SIZES)
    config.layer_types = ["linear_attention"] * 3
    with pytest.raises(SpecprefillError, match="m: layers of type 'linear_attention'"):
        check_config(config, "m")
    config = transformers.Qwen2Config(**SIZES)
    config.num_kv_shared_layers = 1
    with pytest.raises(SpecprefillError, match="m: layers that share one KV cache"):
        check_config(config, "m")


def test_rejects_learnt_sinks(tokenizer, tmp_path):
    config = transformers.GptOssConfig(**SIZES, head_dim=16, num_local_experts=2, num_experts_per_tok=1)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(SpecprefillError, match="learnt sinks"):
        load_model(str(tmp_path), CPU, "float32", offline=True)


def test_rejects_checkpoint_with_missing_weights(llama, capfd):
    weights = load_file(llama / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if "layers.1." not in name}
    save_file(kept | {"\x1b[31mmore": torch.zeros(1)}, llama / "model.safetensors", {"format": "pt"})
    with pytest.raises(SpecprefillError, match=r"lacks 9 weights, such as model\.layers\.1\."):
        load_model(str(llama), CPU, "auto", offline=True)
    assert "\x1b" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bundled_models_are_those_that_transformers_loads_from_their_folder(dtype):
    own, expected = (
        load_model(name, CPU, dtype, offline=True).model for name in ("tiny:target", str(BUNDLED_FOLDER / "target"))
    )
    assert own.lm_head.weight.data_ptr() == own.model.embed_tokens.weight.data_ptr()
    for name, weight in expected.state_dict().items():
        assert torch.equal(own.state_dict()[name], weight)


def test_a_written_folder_names_the_weights_that_it_lacks(llama):
    weights = load_file(llama / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, llama / "model.safetensors", {"format": "pt"})
    config = transformers.AutoConfig.from_pretrained(llama)
    assert load_written(llama, config, torch.float32)[1] == ["model.norm.weight"]


def test_rejects_damaged_weights(llama):
    path = llama / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(SpecprefillError, match=r"cannot be loaded .*; check its files, "):
        load_model(str(llama), CPU, "auto", offline=True)
    weights = load_bytes(content)
    save_file(weights | {"model.norm.weight": torch.ones(7)}, path, {"format": "pt"})
    with pytest.raises(SpecprefillError, match="cannot be loaded"):
        load_model(str(llama), CPU, "auto", offline=True)


def test_rejects_model_larger_than_memory(llama, monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: types.SimpleNamespace(available=1_000))
    message = r"its weights take 0\.0 GiB in float32, and 0\.0 GiB of memory are free"
    with pytest.raises(SpecprefillError, match=message):
        load_model(str(llama), CPU, "float32", offline=True)


def test_tiktoken_matches_the_bundled_tokenizer(tokenizer):
    texts = [document.text for document in read_documents([str(packaged_folder("sample_docs"))])]
    texts += ["".join(map(chr, range(32, 3_000))), "  \n\n\t x  12345,67\r\n ", "naïve \N{GRINNING FACE} 東京"]
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert counting_encoding().encode_ordinary(text) == ids
        assert counting_encoding().decode(ids) == text
        assert tokenizer.decode(ids) == text
        assert count_tokens(text) == len(ids)


def test_draft_and_target_can_be_replaced():
    assert find_pair("tiny") is PAIRS["tiny"]
    assert find_pair("tiny", "a/draft", "b/target").prompt == "ask"
    mixed = find_pair("qwen3-8b", draft="Qwen/Qwen3-1.7B")
    assert (mixed.draft, mixed.target) == ("Qwen/Qwen3-1.7B", "Qwen/Qwen3-8B")
    with pytest.raises(UsageError, match="'nope': unknown; known are tiny"):
        find_pair("nope")


@pytest.mark.parametrize(("gpu", "ending"), [(True, ""), (False, "-GGUF")])
def test_without_a_gpu_qwen_comes_in_files_for_a_cpu(monkeypatch, gpu, ending):
    monkeypatch.setattr(pairs, "has_gpu", lambda: gpu)
    assert find_pair("qwen2.5-7b").target == f"Qwen/Qwen2.5-7B-Instruct{ending}"


@pytest.mark.parametrize(("capability", "dtype"), [((9, 0), torch.bfloat16), ((7, 5), torch.float16)])
def test_auto_dtype_suits_the_gpus_fused_attention(monkeypatch, capability, dtype):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert choose_dtype("auto", Placement({"": "cuda:0"}), SMALL) is dtype
    assert choose_dtype("auto", Placement({"": "cuda:0"}), transformers.Gemma3TextConfig()) is torch.bfloat16


@pytest.mark.parametrize(
    ("hidden", "instructions", "dtype"),
    [(576, True, torch.bfloat16), (576, False, torch.float32), (256, True, torch.float32)],
)
def test_a_cpu_with_the_instructions_computes_larger_models_in_bfloat16(monkeypatch, hidden, instructions, dtype):
    monkeypatch.setattr(placement, "cpu_has_bfloat16", lambda: instructions)
    assert choose_dtype("auto", CPU, transformers.LlamaConfig(hidden_size=hidden)) is dtype
    assert choose_dtype("float32", CPU, transformers.LlamaConfig(hidden_size=hidden)) is torch.float32


def test_dtype_and_devices_are_chosen_or_rejected():
    assert choose_dtype("float16", CPU, SMALL) is torch.float16
    assert choose_placement("cpu").device_map is None
    for devices in ("cuda:77", "gpu", "", "cuda"):
        with pytest.raises(UsageError, match="--devices"):
            choose_placement(devices)


def test_one_gpu_is_filled_before_a_model_is_spread(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda gpu: ((gpu + 1) * 1_000, 10_000))
    auto = placement.spread([0, 1])
    assert (auto.gpus, auto.max_memory) == ((0, 1), {0: 800, 1: 1_600})
    assert placement.draft_placement(auto) == Placement({"": "cuda:1"})
    for needed, chosen in ((800, Placement({"": "cuda:0"})), (801, Placement({"": "cuda:1"})), (1_601, auto)):
        assert placement.prefer_one_gpu(auto, needed) == chosen
    assert placement.prefer_one_gpu(CPU, 1) == CPU
    with pytest.raises(SpecprefillError, match=r"m: its weights take .* GiB of memory are free; use a smaller model"):
        placement.check_memory(SMALL, "m", auto, torch.bfloat16)


def test_the_bundled_draft_chooses_for_pairs_from_the_hub_unless_their_own_is_needed(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    hub_draft = PAIRS["qwen3-8b"].draft
    base = Settings(pair="qwen3-8b")
    assert chosen_pair(base).draft == PAIRS["tiny"].draft
    assert chosen_pair(base).target == PAIRS["qwen3-8b"].target
    for changed in ({"mode": "draft-kv"}, {"scorer": "paper"}, {"proposer": "draft"}):
        assert chosen_pair(base.varied(**changed)).draft == hub_draft
    assert chosen_pair(base.varied(draft="a/draft")).draft == "a/draft"
    heads = draft_folder(hub_draft) / HEADS_FILE
    heads.parent.mkdir()
    heads.touch()
    assert chosen_pair(base).draft == hub_draft

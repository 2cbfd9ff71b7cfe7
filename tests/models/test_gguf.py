"""A GGUF file as the target: same tokens as its draft, nearly the same logits, and one line for what cannot be read."""

import copy
import json
import shutil
from pathlib import Path

import pytest
import torch

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models import adapter
from specprefill_cli.models.loading import load_model, load_pair
from specprefill_cli.models.outline import load_outline
from specprefill_cli.models.pairs import Pair
from specprefill_cli.models.placement import Placement
from specprefill_cli.models.refs import ModelRef
from specprefill_cli.models.tokenizers import agreed_tokenizer
from specprefill_cli.resources import BUNDLED_FOLDER, packaged_folder
from specprefill_cli.settings import Settings

HANDBOOK = str(packaged_folder("sample_docs") / "harbour-handbook.pdf")
QUESTION = "What mileage allowance does the company pay if you use your own car?"


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The bundled draft in a folder, and the bundled target in a GGUF file with 8-bit weights."""
    from specprefill_cli.lab.benchmarks.gguf import export_gguf

    folder = tmp_path_factory.mktemp("gguf")
    shutil.copytree(BUNDLED_FOLDER / "draft", folder / "draft")
    export_gguf(BUNDLED_FOLDER / "target", folder / "target.gguf")
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
    assert agreed_tokenizer("a folder", target_tokenizer, tokenizer) is target_tokenizer
    other = copy.deepcopy(tokenizer)
    other.add_tokens(["<other>"])
    assert agreed_tokenizer(pair.target, target_tokenizer, other) is target_tokenizer


def test_doctor_judges_by_the_tokenizer_that_is_used(call, pair):
    code, out, _ = call("doctor", "--draft", pair.draft, "--target", pair.target, "--prompt", "tiny", "--json")
    states = {check["name"]: check["state"] for check in json.loads(out)["checks"]}
    assert (code, states["tokenizer"], states["speculative decoding"]) == (0, "ok", "ok")


@pytest.mark.slow
@pytest.mark.parametrize("options", [("--mode", "select"), ("--mode", "full"), ("--proposer", "draft")])
def test_ask_answers_from_a_file(call, pair, options):
    models = ("--draft", pair.draft, "--target", pair.target, "--prompt", "tiny")
    assert call("ask", HANDBOOK, QUESTION, *models, *options, "--quiet") == (0, "42 pence\n", "")


@pytest.mark.parametrize(("name", "length"), [("cut.gguf", 300_000), ("header.gguf", 4), ("empty.gguf", 0)])
def test_a_damaged_file_is_one_line(pair, tmp_path, name, length):
    (tmp_path / name).write_bytes(Path(pair.target).read_bytes()[:length])
    with pytest.raises(SpecprefillError, match=rf"{name}: cannot be loaded \(") as raised:
        load_model(str(tmp_path / name), Placement(None), "float32", offline=True)
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SpecprefillError, match=r"absent\.gguf: no such file; give the path of a GGUF file"):
        load_model(str(tmp_path / "absent.gguf"), Placement(None), "float32", offline=True)


def test_a_file_needs_no_hub(pair):
    assert ModelRef(pair.target).is_local
    assert ModelRef("Absent.GGUF").is_local

"""The exported GGUF file against its source model, both loaded by transformers."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from specprefill_cli.lab.benchmarks.gguf import export_gguf
from specprefill_cli.models.hub import model_source

pytestmark = pytest.mark.slow

TEXT = "The mooring fee is 42 pence per metre, payable on 3 May 2024 (see annex B-17)."


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    from pathlib import Path

    folder = tmp_path_factory.mktemp("gguf")
    export_gguf(Path(model_source("tiny:target")), folder / "target.gguf")
    return folder


def test_the_gguf_file_has_the_same_token_ids_and_nearly_the_same_logits(exported):
    source = model_source("tiny:target")
    tokenizer, gguf_tokenizer = (
        AutoTokenizer.from_pretrained(source),
        AutoTokenizer.from_pretrained(exported, gguf_file="target.gguf"),
    )
    ids = tokenizer(TEXT, add_special_tokens=False).input_ids
    assert gguf_tokenizer(TEXT, add_special_tokens=False).input_ids == ids
    original = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    converted = AutoModelForCausalLM.from_pretrained(exported, gguf_file="target.gguf", dtype=torch.float32)
    with torch.no_grad():
        expected, computed = (model(torch.tensor([ids])).logits.log_softmax(-1) for model in (original, converted))
    # Eight bits a weight: the order of the likely tokens stays, the logits move a little.
    assert (expected - computed).abs().mean() < 0.1
    assert (expected.argmax(-1) == computed.argmax(-1)).float().mean() > 0.8

"""The exported GGUF file against its source model: in transformers, and in llama.cpp where xllamacpp is installed."""

from itertools import islice
from pathlib import Path

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from specprefill_cli.lab.benchmarks.gguf import export_gguf
from specprefill_cli.lab.evaluation.datasets import read_items
from specprefill_cli.models.adapter import prefill, run
from specprefill_cli.models.hub import model_source
from specprefill_cli.resources import packaged_folder
from specprefill_cli.settings import Settings

PROMPTS, TOKENS = 20, 20
TEXT = "The mooring fee is 42 pence per metre, payable on 3 May 2024 (see annex B-17)."


@pytest.fixture(autouse=True)
def no_network():
    """Allow these tests to ask llama.cpp's server on the loopback."""


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gguf")
    export_gguf(Path(model_source("tiny:target")), folder / "target.gguf")
    return folder


@pytest.fixture(scope="module")
def llama(exported):
    xllamacpp = pytest.importorskip("xllamacpp")
    options = xllamacpp.CommonParams()
    options.model.path, options.n_ctx, options.n_parallel, options.n_gpu_layers = (
        str(exported / "target.gguf"),
        8_192,
        1,
        0,
    )
    options.port, options.verbosity = 0, -1
    server = xllamacpp.Server(options)
    with httpx.Client(base_url=server.listening_address, trust_env=False, timeout=60) as client:
        yield client


@pytest.mark.slow
def test_transformers_gets_the_same_token_ids_and_nearly_the_same_logits(exported, tokenizer):
    ids = tokenizer(TEXT, add_special_tokens=False).input_ids
    gguf_tokenizer = AutoTokenizer.from_pretrained(exported, gguf_file="target.gguf")
    assert gguf_tokenizer(TEXT, add_special_tokens=False).input_ids == ids
    original = AutoModelForCausalLM.from_pretrained(model_source("tiny:target"), dtype=torch.float32)
    converted = AutoModelForCausalLM.from_pretrained(exported, gguf_file="target.gguf", dtype=torch.float32)
    with torch.no_grad():
        expected, computed = (model(torch.tensor([ids])).logits.log_softmax(-1) for model in (original, converted))
    # Eight bits a weight: the order of the likely tokens stays, the logits move a little.
    assert (expected - computed).abs().mean() < 0.1
    assert (expected.argmax(-1) == computed.argmax(-1)).float().mean() > 0.8


def test_llama_cpp_splits_text_into_the_same_ids(llama, tokenizer):
    text = (packaged_folder("sample_docs") / "sources" / "harbour-handbook.md").read_text(encoding="utf-8")
    llama_tokens = llama.post("/tokenize", json={"content": text, "add_special": False, "parse_special": False}).json()
    assert llama_tokens["tokens"] == tokenizer(text, add_special_tokens=False).input_ids


def test_llama_cpp_answers_as_our_full_prefill_does(llama, tiny_session):
    target, equal_answers = tiny_session.pair.target, 0
    for item in islice(read_items(Path(packaged_folder("sample_docs") / "questions.jsonl"), None, 0, 0), PROMPTS):
        tokens = tiny_session.request(item.collection, item.question, Settings(mode="full")).prompt.tokens
        logits, state = prefill(target.model, tokens, torch.arange(len(tokens)), 16_384)
        ours = [int(logits.argmax())]
        while len(ours) < TOKENS and ours[-1] not in target.stop_tokens:
            step = run(target.model, torch.tensor(ours[-1:]), torch.tensor([state.length]), state)
            ours.append(int(step.argmax()))
        question = {"prompt": tokens.tolist(), "n_predict": TOKENS, "temperature": 0, "return_tokens": True}
        theirs = llama.post("/completion", json=question).json()["tokens"]
        ours, theirs = ([token for token in answer if token not in target.stop_tokens] for answer in (ours, theirs))
        equal_answers += ours == theirs
    assert equal_answers >= 18

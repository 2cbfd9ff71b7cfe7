"""The exported GGUF file against its source model, in llama.cpp where xllamacpp is installed."""

from itertools import islice
from pathlib import Path

import httpx
import pytest
import torch

from specprefill_cli.lab.benchmarks.gguf import export_gguf
from specprefill_cli.lab.evaluation.datasets import read_items
from specprefill_cli.models.adapter import prefill, run
from specprefill_cli.models.hub import model_source
from specprefill_cli.resources import packaged_folder
from specprefill_cli.settings import Settings

PROMPTS, TOKENS = 20, 20


@pytest.fixture(autouse=True)
def no_network():
    """Allow these tests to ask llama.cpp's server on the loopback."""


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    xllamacpp = pytest.importorskip("xllamacpp")
    file = tmp_path_factory.mktemp("gguf") / "target.gguf"
    export_gguf(Path(model_source("tiny:target")), file)
    options = xllamacpp.CommonParams()
    options.model.path, options.n_ctx = str(file), 8_192
    options.n_parallel, options.n_gpu_layers, options.port, options.verbosity = 1, 0, 0, -1
    server = xllamacpp.Server(options)
    with httpx.Client(base_url=server.listening_address, trust_env=False, timeout=60) as client:
        yield client


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

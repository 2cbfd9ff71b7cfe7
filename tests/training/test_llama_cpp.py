"""The bundled target in llama.cpp: the same ids for a text, and nearly the same greedy answers from 8-bit weights.

Runs where xllamacpp is installed (the extra `peer`).
"""

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

xllamacpp = pytest.importorskip("xllamacpp")
PROMPTS, TOKENS = 20, 20


@pytest.fixture(autouse=True)
def no_network():
    """Allow these tests to ask llama.cpp's server on the loopback."""


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    file = tmp_path_factory.mktemp("gguf") / "target.gguf"
    export_gguf(Path(model_source("tiny:target")), file)
    options = xllamacpp.CommonParams()
    options.model.path, options.n_ctx, options.n_parallel, options.n_gpu_layers = str(file), 8_192, 1, 0
    options.port, options.verbosity = 0, -1
    server = xllamacpp.Server(options)
    with httpx.Client(base_url=server.listening_address, trust_env=False, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def prompts(tiny_session):
    items = read_items(Path(packaged_folder("sample_docs") / "questions.jsonl"), None, 0, 0)
    return [
        tiny_session.request(item.collection, item.question, Settings(mode="full")).prompt.tokens
        for item in islice(items, PROMPTS)
    ]


def test_llama_cpp_splits_text_into_the_same_ids(llama, tokenizer):
    text = (packaged_folder("sample_docs") / "sources" / "harbour-handbook.md").read_text(encoding="utf-8")
    llama_tokens = llama.post("/tokenize", json={"content": text, "add_special": False, "parse_special": False}).json()
    assert llama_tokens["tokens"] == tokenizer(text, add_special_tokens=False).input_ids


def drop_stops(tokens, target):
    return [token for token in tokens if token not in target.stop_tokens]


def test_llama_cpp_answers_as_our_full_prefill_does(llama, prompts, tiny_session):
    target = tiny_session.pair.target
    equal_answers = 0
    for tokens in prompts:
        logits, state = prefill(target.model, tokens, torch.arange(len(tokens)), 16_384)
        our_tokens = [int(logits.argmax())]
        while len(our_tokens) < TOKENS and our_tokens[-1] not in target.stop_tokens:
            step = run(target.model, torch.tensor(our_tokens[-1:]), torch.tensor([state.length]), state)
            our_tokens.append(int(step.argmax()))
        question = {"prompt": tokens.tolist(), "n_predict": TOKENS, "temperature": 0, "return_tokens": True}
        llama_tokens = llama.post("/completion", json=question).json()["tokens"]
        equal_answers += drop_stops(llama_tokens, target) == drop_stops(our_tokens, target)
    assert equal_answers >= 18

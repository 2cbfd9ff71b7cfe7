"""The bundled target in llama.cpp: the same ids for a text, and nearly the same greedy answers from 8-bit weights.

Runs where llama-cpp-python is installed (the extra `peer`), which pip compiles where there is no wheel of it.
"""

from itertools import islice
from pathlib import Path

import pytest
import torch

from specprefill_cli.lab.benchmarks.gguf_export import export_gguf
from specprefill_cli.lab.evaluation.datasets import read_items
from specprefill_cli.models.adapter import prefill, run
from specprefill_cli.models.sources import model_source
from specprefill_cli.resources import packaged_folder
from specprefill_cli.settings import Settings

llama_cpp = pytest.importorskip("llama_cpp")
PROMPTS, TOKENS = 20, 20


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    file = tmp_path_factory.mktemp("gguf") / "target.gguf"
    export_gguf(Path(model_source("tiny:target")), file)
    return llama_cpp.Llama(model_path=str(file), n_ctx=8_192, n_gpu_layers=0, verbose=False)


@pytest.fixture(scope="module")
def prompts(tiny_session):
    items = read_items(Path(packaged_folder("sample_docs") / "questions.jsonl"), None, 0, 0)
    return [
        tiny_session.request(item.collection, item.question, Settings(mode="full")).prompt.tokens
        for item in islice(items, PROMPTS)
    ]


def greedy(first, step, stops):
    """The first TOKENS tokens, or those up to the first stop; step: a token -> the next one."""
    made = [first]
    while len(made) < TOKENS and made[-1] not in stops:
        made.append(step(made[-1]))
    return made


def test_llama_cpp_splits_text_into_the_same_ids(llama, tokenizer):
    text = (packaged_folder("sample_docs") / "sources" / "harbour-handbook.md").read_text(encoding="utf-8")
    theirs = llama.tokenize(text.encode(), add_bos=False, special=False)
    assert theirs == tokenizer(text, add_special_tokens=False).input_ids


def test_llama_cpp_answers_as_our_full_prefill_does(llama, prompts, tiny_session):
    target = tiny_session.pair.target
    same = 0
    for tokens in prompts:
        positions = torch.arange(len(tokens))
        logits, state = prefill(target.model, tokens, positions, 16_384)

        def ours(token, state=state):
            return int(run(target.model, torch.tensor([token]), torch.tensor([state.length]), state).argmax())

        def theirs(token):
            llama.eval([token])
            return llama.sample(temp=0.0)

        expected = greedy(int(logits.argmax()), ours, target.stop_tokens)
        llama.reset()
        llama.eval(tokens[:-1].tolist())
        same += greedy(theirs(int(tokens[-1])), theirs, target.stop_tokens) == expected
    assert same >= 18

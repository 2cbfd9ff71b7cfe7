"""Peers read the same tokens with their own code and are measured like a mode."""

import json
import sys
import types
from dataclasses import replace

import pytest
import torch

from specprefill_cli.cli.console import Notes
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.lab.benchmarks import peers
from specprefill_cli.lab.benchmarks.peers import Peer, llama_cpp_peer, transformers_peer
from specprefill_cli.lab.benchmarks.prefill import DECODED, QUESTION, bench_prefill, prompt_of_length
from specprefill_cli.lab.commands.bench import peers_of
from specprefill_cli.lab.evaluation.runner import Configuration
from specprefill_cli.models.running import attention, packed
from specprefill_cli.settings import Settings
from tests.helpers.architectures import build_model

BASE = Settings(max_new_tokens=1, speculate="off", scorer="question", keep=0.3)


@pytest.mark.parametrize("random_pair", ["llama", "mistral", "gemma3", "phi3"], indirect=True)
def test_transformers_peer_uses_its_own_attention_and_restores_ours(random_pair, monkeypatch):
    name = random_pair.target.name.split("-")[1]
    plain = build_model(name, seed=1, attention="sdpa")
    tokens = torch.arange(3, 140)
    with torch.no_grad():
        expected = int(plain(tokens[None]).logits[0, -1].argmax())
    called = []
    monkeypatch.setattr(packed, "sequence_metadata", lambda *_: called.append(True))
    assert transformers_peer(random_pair.target).read(tokens) == expected
    assert not called
    assert random_pair.target.model.config._attn_implementation == attention.ATTENTION


def test_our_attention_is_restored_after_a_failure(random_pair, monkeypatch):
    model = random_pair.target.model

    def fail(**_):
        assert model.config._attn_implementation == "sdpa"
        raise RuntimeError("out of memory")

    monkeypatch.setattr(model, "generate", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        transformers_peer(random_pair.target).read(torch.arange(3, 9))
    assert model.config._attn_implementation == attention.ATTENTION


def test_peer_reads_the_full_prompt_in_every_round_and_gets_a_row(random_session):
    seen = []
    peer = Peer("other", lambda tokens: seen.append(tokens) or 0, lambda _tokens, count: 2.0 * count)
    requested = [Configuration("full"), Configuration("select", 0.3, "question")]
    steps, warmed_modes = [], []

    def step(text):
        steps.append(text)
        warmed_modes.append(set(random_session.warmed))

    rows = bench_prefill(random_session, [300], requested, 2, BASE, step, [peer])
    # Memory that a mode's first run leaves allocated must not count in a row.
    assert all(modes >= {"full", "select"} for modes in warmed_modes)
    assert [row["mode"] for row in rows] == ["full", "select", "other"]
    collection = prompt_of_length(random_session, 300, BASE)
    expected = random_session.request(collection, QUESTION, BASE).prompt.tokens
    assert len(seen) == 3
    assert all(torch.equal(tokens, expected) for tokens in seen)
    full, select, row = rows
    assert full["limit"] == 1
    assert select["efficiency"] == pytest.approx(select["speedup"] / select["limit"])
    assert (row["keep"], row["limit"], row["efficiency"], row["kept_ratio"]) == (None, None, None, 1.0)
    assert row["speedup"] == pytest.approx(rows[0]["ttft_seconds"] / row["ttft_seconds"])
    assert row["phases"]["tokenize"] > 0
    assert row["phases"]["target_prefill"] > 0
    assert row["ttft_low"] <= row["ttft_seconds"] <= row["ttft_high"]
    assert row["decode_tokens_per_second"] == 2.0 * DECODED
    assert rows[0]["decode_tokens_per_second"] > 0
    assert rows[1]["decode_tokens_per_second"] is None
    # Configurations take turns; none has its rounds in one block.
    assert [step.split(", ")[1] for step in steps] == ["full", "select", "other"] * 3


def test_transformers_peer_is_skipped_with_several_ranks(random_pair, capsys):
    assert [peer.name for peer in peers_of(random_pair, Notes(quiet=True), True, None, 9)] == ["transformers"]
    shared = replace(random_pair, ranks=replace(random_pair.ranks, size=2))
    assert peers_of(shared, Notes(quiet=False), True, None, 9) == []
    assert "transformers is not measured" in capsys.readouterr().err


@pytest.fixture
def requests(monkeypatch):
    """The options and the request of each completion by a stand-in for llama.cpp, which repeats the last token."""
    requests = []

    class Server:
        def __init__(self, options):
            self.options = options

        def handle_completions(self, request):
            requests.append((self.options, request))
            timings = {"predicted_per_second": request["max_tokens"]}
            return {"choices": [{"logprobs": {"content": [{"id": request["prompt"][-1]}]}}], "timings": timings}

    def make_options():
        parts = {name: types.SimpleNamespace() for name in ("model", "cpuparams", "cpuparams_batch")}
        return types.SimpleNamespace(**parts)

    monkeypatch.setitem(sys.modules, "xllamacpp", types.SimpleNamespace(Server=Server, CommonParams=make_options))
    return requests


def test_llama_cpp_starts_cold_with_the_same_threads(requests, tmp_path):
    assert llama_cpp_peer(tmp_path / "a.gguf", 512, 3).read(torch.tensor([4, 5])) == 5
    options, request = requests[0]
    assert request["prompt"] == [4, 5]
    assert (request["cache_prompt"], request["max_tokens"], request["temperature"]) == (False, 1, 0)
    assert options.cpuparams.n_threads == options.cpuparams_batch.n_threads == 3
    assert (options.model.path, options.n_ctx, options.n_gpu_layers) == (str(tmp_path / "a.gguf"), 512 + peers.SLACK, 0)


def test_bench_prefill_measures_llama_cpp_and_the_modes(call, requests, monkeypatch, tmp_path):
    monkeypatch.setattr(peers, "ModelRef", lambda _name: types.SimpleNamespace(file=tmp_path / "a.gguf"))
    code, out, err = call("bench", "prefill", *"--llama-cpp --lengths 300 --keep 0.2 --repeat 1 --json".split())
    assert (code, err) == (0, "")
    rows = json.loads(out)["rows"]
    assert [row["mode"] for row in rows] == ["full", "select", "transformers", "llama.cpp"]
    assert rows[3]["decode_tokens_per_second"] > 1
    assert requests[0][0].n_ctx >= 300 + DECODED


def test_missing_llama_cpp_error_names_the_package(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(SpecprefillError, match=r"xllamacpp; install it with .* -m pip install "):
        llama_cpp_peer(tmp_path / "a.gguf", 512, 1)

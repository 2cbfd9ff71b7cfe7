"""Fixtures: no network, tiny random models of every architecture, the bundled pair."""

import functools
import json
import os
import signal
import socket
import sys
from dataclasses import replace
from io import BytesIO, TextIOWrapper

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["SPECPREFILL_CONFIG"] = os.devnull
# No test may ask a server that happens to run on this machine.
os.environ["SPECPREFILL_SERVER"] = "off"
# What the tests see does not depend on which models are installed.
os.environ["SPECPREFILL_PAIR"] = "tiny"
# Tests that run beside each other share the cores.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"

import hypothesis
import pytest
import tokenizers
import torch
import transformers

from specprefill_cli.answering.session import open_session
from specprefill_cli.files import BUNDLED_FOLDER
from specprefill_cli.models.encoder_files import load_encoder
from specprefill_cli.models.machine import quantization
from specprefill_cli.models.sources import pairs
from specprefill_cli.prefill.calibration import CalibratedPair
from specprefill_cli.settings import Settings
from tests.helpers.architectures import ARCHITECTURES, build_model
from tests.helpers.random_pairs import random_calibrated_pair
from tests.helpers.sessions import session_of

# The same for settings that a test makes itself.
pairs.default_pair = functools.wraps(pairs.default_pair)(lambda: "tiny")
# A suite that a shell started in the background has Ctrl-C ignored, and so would have the programs that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
# No test may fail because the machine is slow.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")


def pytest_addoption(parser):
    group = parser.getgroup("specprefill")
    group.addoption("--device", default="cpu", help="device of tests/models/test_device.py: cpu, cuda or auto")
    group.addoption("--dtype", default="float32", help="dtype of tests/models/test_device.py")


@pytest.fixture(scope="session", autouse=True)
def user_cache(tmp_path_factory):
    """No test may fill the user's cache with converted models or documents."""
    os.environ["SPECPREFILL_MODELS"] = str(tmp_path_factory.mktemp("models"))
    os.environ["SPECPREFILL_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*_args, **_kwargs):
        raise OSError("tests have no network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture(params=sorted(ARCHITECTURES))
def model(request):
    """One small random model of each architecture, with specprefill's attention."""
    return build_model(request.param)


@pytest.fixture(params=["float32", "bfloat16"])
def processor_dtype(request, monkeypatch):
    """The data type that the processor seems to compute fastest: without instructions for bfloat16, and with them."""
    for check in quantization.BFLOAT16_CHECKS:
        monkeypatch.setattr(torch.cpu, check, lambda: request.param == "bfloat16", raising=False)
    load_encoder.cache_clear()
    yield request.param
    load_encoder.cache_clear()


@pytest.fixture(scope="session")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(BUNDLED_FOLDER / "target")


@pytest.fixture
def random_pair(request, tokenizer):
    """Draft and target of one architecture with random weights and the bundled tokenizer: for mechanics, not meaning."""
    return random_calibrated_pair(getattr(request, "param", "llama"), tokenizer)


@pytest.fixture
def two_tokenizers(random_pair, tokenizer):
    """A session with a draft whose tokenizer splits the same text otherwise than the target's: into bytes."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    state["model"]["merges"] = []
    backend = tokenizers.Tokenizer.from_str(json.dumps(state))
    bytes_only = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<|bos|>", eos_token="<|eos|>"
    )
    target = replace(random_pair.target, name="target")
    draft = replace(random_pair.draft, name="draft", tokenizer=bytes_only)
    return session_of(CalibratedPair(random_pair.pair, target, draft))


@pytest.fixture
def random_session(random_pair):
    return session_of(random_pair)


@pytest.fixture(scope="session")
def tiny_session():
    """The bundled trained pair."""
    torch.manual_seed(0)
    return open_session(Settings())


@pytest.fixture
def call(monkeypatch, capsys):
    """Run `specprefill ARGUMENTS` in this process: exit code, standard output, standard error."""

    def run(*arguments, stdin=b""):
        from specprefill_cli.__main__ import main

        monkeypatch.setattr(sys, "argv", ["specprefill", *arguments])
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(stdin)))
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run


@pytest.fixture
def call_json(call):
    """Run `specprefill ARGUMENTS --json`, which must end with an exit code, and return the object that it prints."""

    def run(*arguments, code=0, **options):
        ended, out, err = call(*arguments, "--json", **options)
        assert ended == code, err
        return json.loads(out)

    return run

"""`pairs` and `doctor`."""

import json
import shutil
from types import SimpleNamespace

import pytest

from specprefill_cli import diagnostics
from specprefill_cli.files import BUNDLED_FOLDER


def test_pairs_as_json(call):
    record = json.loads(call("pairs", "--json")[1])
    assert record["schema"] == 1
    assert record["pairs"][0]["name"] == "tiny"
    assert "Qwen/Qwen2.5-7B-Instruct" in call("pairs")[1]


@pytest.fixture
def doctor(call_json):
    """Run `doctor`, and return its checks by name."""

    def run(*arguments, code=0):
        record = call_json("doctor", *arguments, code=code)
        assert record["ok"] == (code == 0)
        return {check["name"]: check for check in record["checks"]}

    return run


def broken(checks):
    return {name: check["detail"] for name, check in checks.items() if check["state"] == "broken"}


def test_doctor_finds_a_pair_without_a_usable_prompt(doctor):
    faults = broken(doctor("--draft", "tiny:draft", "--target", "tiny:target", code=1))
    # A custom pair gets the chat prompt, and this target has no chat template.
    assert list(faults) == ["prompt"]
    assert "no chat template" in faults["prompt"]


def test_doctor_passes_a_complete_installation(call, doctor):
    checks = doctor()
    expected = {"pair tiny", "prompt", *"python torch cpu tokenizer context".split()}
    assert expected <= set(checks)
    assert checks["target tiny:target"]["detail"].startswith("float32: weights 25 MiB")
    code, out, err = call("doctor")
    assert (code, err, "pair tiny" in out) == (0, "", True)


def test_doctor_counts_memory_for_the_prompt(doctor, monkeypatch):
    memory = SimpleNamespace(available=80 * 2**20, total=2**30)
    monkeypatch.setattr(diagnostics.psutil, "virtual_memory", lambda: memory)
    fit = doctor("--devices", "cpu", "--tokens", "16000", code=1)["pair tiny"]
    assert fit["state"] == "broken"
    assert "use a smaller pair" in fit["detail"]
    doctor("--devices", "cpu", "--tokens", "100")


def test_doctor_names_what_is_broken_and_checks_the_rest(doctor, monkeypatch):
    def fail():
        raise RuntimeError("driver too old")
        yield

    monkeypatch.setattr(diagnostics, "list_devices", fail)
    checks = doctor(code=1)
    assert broken(checks) == {"devices": "RuntimeError: driver too old"}
    assert "pair tiny" in checks


def test_doctor_tells_how_to_fetch_the_configuration_of_a_pair(doctor):
    checks = doctor("--pair", "qwen3-8b", "--offline", code=1)
    (target,) = [check for name, check in checks.items() if name.startswith("target ")]
    assert (target["state"], "leave out --offline to download it" in target["detail"]) == ("broken", True)


def test_doctor_counts_the_memory_of_a_model_without_its_weights(doctor, tmp_path):
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BUNDLED_FOLDER / "target" / name, tmp_path)
    checks = doctor("--target", str(tmp_path), "--dtype", "float32", "--tokens", "1000", code=1)
    assert checks[f"target {tmp_path}"]["detail"] == "float32: weights 25 MiB, KV of 1,000 tokens 6 MiB"

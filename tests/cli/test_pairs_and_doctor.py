"""`pairs` and `doctor`."""

import json
import shutil

import pytest

from specprefill_cli import diagnostics
from specprefill_cli.diagnostics import Check, State
from specprefill_cli.resources import BUNDLED_FOLDER


def test_pairs_as_json(call):
    record = json.loads(call("pairs", "--json")[1])
    assert record["schema"] == 1
    assert record["pairs"][0]["name"] == "tiny"
    assert "Qwen/Qwen2.5-7B-Instruct" in call("pairs")[1]


def test_doctor_finds_a_pair_without_a_usable_prompt(call):
    code, out, _ = call("doctor", "--draft", "tiny:draft", "--target", "tiny:target", "--json")
    # A custom pair gets the chat prompt, and this target has no chat template.
    assert (code, [check["name"] for check in json.loads(out)["checks"] if check["state"] == "broken"]) == (
        1,
        ["prompt"],
    )


def test_doctor_passes_a_complete_installation(call):
    code, out, err = call("doctor", "--json")
    record = json.loads(out)
    assert (code, err) == (0, ""), [check for check in record["checks"] if check["state"] == "broken"]
    names = [check["name"] for check in record["checks"]]
    assert record["ok"] is True
    assert {"python", "torch", "cpu", "pair tiny", "select", "draft-kv", "speculative decoding", "context"} <= set(
        names
    )
    (target,) = [check for check in record["checks"] if check["name"] == "target tiny:target"]
    assert target["detail"].startswith("float32: weights 25 MiB")
    assert "pair tiny" in call("doctor")[1]


def test_doctor_counts_memory_for_the_prompt(call, monkeypatch):
    monkeypatch.setattr(diagnostics, "main_memory", lambda: (80 * 2**20, 2**30))
    code, out, _ = call("doctor", "--devices", "cpu", "--tokens", "16000", "--json")
    assert code == 1
    (fit,) = [check for check in json.loads(out)["checks"] if check["name"] == "pair tiny"]
    assert fit["state"] == "broken"
    assert "use a smaller pair" in fit["detail"]
    assert call("doctor", "--devices", "cpu", "--tokens", "100")[0] == 0


def test_doctor_names_what_is_broken_and_checks_the_rest(call, monkeypatch):
    def fail():
        raise RuntimeError("driver too old")
        yield

    monkeypatch.setattr(diagnostics, "list_devices", fail)
    code, out, _ = call("doctor", "--json")
    record = json.loads(out)
    assert (code, record["ok"]) == (1, False)
    broken = {check["name"]: check["detail"] for check in record["checks"] if check["state"] == "broken"}
    assert broken == {"devices": "RuntimeError: driver too old"}
    assert "pair tiny" in [check["name"] for check in record["checks"]]


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        ((), "HF_HUB_OFFLINE is set; unset it to download the model"),
        (("--offline",), "leave out --offline to download it"),
    ],
)
def test_doctor_tells_how_to_fetch_the_configuration_of_a_pair(call, arguments, remedy):
    code, out, _ = call("doctor", "--pair", "qwen3-8b", *arguments, "--json")
    assert code == 0
    (target,) = [check for check in json.loads(out)["checks"] if check["name"].startswith("target ")]
    assert target["state"] == "no"
    assert remedy in target["detail"]


def test_doctor_counts_the_memory_of_a_model_without_its_weights(call, tmp_path):
    source = BUNDLED_FOLDER / "target"
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, tmp_path)
    _, out, _ = call("doctor", "--target", str(tmp_path), "--dtype", "float32", "--tokens", "1000", "--json")
    checks = {check["name"]: check for check in json.loads(out)["checks"]}
    assert checks[f"target {tmp_path}"]["detail"] == "float32: weights 25 MiB, KV of 1,000 tokens 6 MiB"


def test_doctor_reports_packages_out_of_range_or_absent():
    assert diagnostics.check_package("typer", ">=1000", State.BROKEN, "x").state is State.LIMITED
    assert diagnostics.check_package("no-such-package-here", "", State.NO, "pip install it") == Check(
        "no-such-package-here", State.NO, "not installed; pip install it"
    )

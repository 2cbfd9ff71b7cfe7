"""The check for machines with a GPU, on this one: its steps, its time limits and its report."""

import json
import warnings
from contextlib import nullcontext

import pytest
import torch

from specprefill_cli.lab.gpu_check import __main__ as command
from specprefill_cli.lab.gpu_check import probes
from specprefill_cli.lab.gpu_check import steps as steps_module
from specprefill_cli.lab.gpu_check.report import report
from specprefill_cli.lab.gpu_check.steps import Step, run_steps
from specprefill_cli.models.running.attention_plan import AttentionDevice

HANG = (
    "import subprocess, sys, threading; subprocess.Popen([sys.executable, '-c', 'input()']); threading.Event().wait()"
)
ROW = {"length": 1024, "ttft": 0.51234, "note": "a|b", "peak_bytes": 2**21, "parts": {}}
ROW["tflops"] = {"draft": 1.23456, "target": 2}
FIGURES = f"import json; print(json.dumps({{'rows': [{ROW}]}}))"


@pytest.fixture(autouse=True)
def short_limits(monkeypatch):
    monkeypatch.setattr(steps_module, "LEAST_SECONDS", 0.1)


def python(name, code, share=1.0, **options):
    return Step(name=name, arguments=("-c", code), share=share, **options)


def test_a_step_that_hangs_crashes_or_fails_ends_no_other_and_is_reported(tmp_path):
    steps = [
        python("hangs", HANG, share=0.02),
        python("crashes", "import os; os.abort()"),
        python("fails", "import sys; print('before'); sys.exit('no memory left')"),
        python("absent", "", missing="no tests in this installation"),
        python("measures", FIGURES),
    ]
    written = []
    results = run_steps(steps, tmp_path, 60, lambda done: written.append(report("Check", done, len(steps))))
    hangs, crashes, fails, absent, measures = results
    assert hangs["state"].startswith("stopped after")
    assert hangs["seconds"] < 10 * hangs["limit_seconds"]
    assert crashes["state"] == "failed: SIGABRT"
    assert fails["state"] == "failed: exit code 1"
    assert fails["output"] == "before\nno memory left"
    assert absent["state"] == "skipped: no tests in this installation"
    assert measures["state"] == "ok"
    # Rewritten after every step, the failed ones too.
    assert [f"{number} of 5 steps" in page for number, page in enumerate(written, 1)] == [True] * 4 + [False]
    assert "no memory left" in written[2]
    assert (
        "| length | ttft | note | peak_bytes | tflops |\n| --- | --- | --- | --- | --- |\n"
        "| 1,024 | 0.5123 | a/b | 2 MiB | draft 1.235, target 2 |" in written[-1]
    )


def test_time_that_a_step_leaves_is_the_later_ones_and_every_step_gets_a_least_time(tmp_path, monkeypatch):
    first, second = run_steps([python("a", ""), python("b", "")], tmp_path, 60, lambda _: None)
    assert first["limit_seconds"] == pytest.approx(30, rel=0.01)
    assert second["limit_seconds"] == pytest.approx(60 - first["seconds"], rel=0.01)
    monkeypatch.setattr(steps_module, "LEAST_SECONDS", 40.0)
    first, second, third = run_steps([python(name, "") for name in "abc"], tmp_path, 60, lambda _: None)
    assert first["limit_seconds"] == second["limit_seconds"] == 40
    assert third["limit_seconds"] <= 60 - first["seconds"] - second["seconds"]
    (late,) = run_steps([python("d", "")], tmp_path, 0, lambda _: None)
    assert late["state"] == "skipped: no time left"


def test_results_and_report_are_written_beside_the_logs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "all_steps", lambda *_: [python("measures", FIGURES), python("fails", "1 / 0")])
    with pytest.raises(command.typer.Exit) as ended:
        command.check(out=tmp_path / "new", minutes=1.0, shapes="tiny:tiny", lengths="64")
    assert ended.value.exit_code == 1
    assert capsys.readouterr().out == f"{tmp_path / 'new' / 'report.md'}\n"
    measures, fails = json.loads((tmp_path / "new" / "results.json").read_text())
    assert measures["rows"][0]["length"] == 1024
    assert "ZeroDivisionError" in fails["output"]
    assert "ZeroDivisionError" in (tmp_path / "new" / "logs" / "fails.err").read_text()


def test_without_a_gpu_small_sizes_are_taken_and_unknown_ones_are_refused(tmp_path, monkeypatch, capsys):
    taken = []
    monkeypatch.setattr(command, "all_steps", lambda *sizes: taken.append(sizes) or [python("measures", FIGURES)])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    command.check()
    with pytest.raises(command.typer.Exit):
        command.check(shapes="huge:tiny")
    assert "'huge' is unknown" in capsys.readouterr().err
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    command.check()
    assert taken == [("tiny:tiny", [1024]), ("qwen2.5-0.5b:qwen2.5-32b", [8192, 32768, 65536, 131072])]
    assert (tmp_path / "gpu-check" / "report.md").exists()


@pytest.mark.parametrize(
    ("capability", "dtype", "works", "missing"),
    [
        ((8, 0), torch.bfloat16, True, False),
        ((8, 0), torch.bfloat16, False, True),
        ((9, 0), torch.float16, False, True),
        ((7, 5), torch.float16, False, False),
        ((9, 0), torch.float32, False, False),
    ],
)
def test_flash_attention_that_is_off_on_a_recent_gpu_fails_the_check(
    monkeypatch, capsys, capability, dtype, works, missing
):
    device = AttentionDevice(kind="cuda", dtype=dtype, head_size=128, capability=capability, flash_works=works)
    fault = probes.missing_flash(device)
    assert (fault is not None) == missing
    monkeypatch.setattr(probes, "PROBES", {"kernels": lambda: [{"pass": "decoding", probes.FAULT: fault}]})
    with pytest.raises(SystemExit) if missing else nullcontext() as ended:
        probes.run_probe("kernels")
    assert not missing or "flash attention is off" in ended.value.code
    # The figures are printed before.
    assert json.loads(capsys.readouterr().out)["rows"][0]["pass"] == "decoding"


def test_synchronisations_are_counted_by_line():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        warnings.warn("something else", stacklevel=1)
    (row,) = probes.count_synchronisations("decoding", caught)
    assert (row["situation"], row["times"]) == ("decoding", 3)
    assert row["place"].startswith("lab/gpu_check/test_gpu_check.py:")


@pytest.mark.slow
def test_every_step_gives_figures_on_a_cpu(call, tmp_path, monkeypatch):
    # The suite has them without this.
    monkeypatch.setattr(command, "TESTS", tmp_path / "absent.py")
    monkeypatch.setattr(probes, "KEYS", 512)
    monkeypatch.setattr("specprefill_cli.lab.benchmarks.decode.QUOTES", 1)
    *steps, on_ranks = command.all_steps("tiny:tiny", [256])
    missing = ["tests in float32", "tests in bfloat16", "synchronisations"]
    assert [step.name for step in steps if step.missing] == missing
    for step in steps:
        if not step.missing:
            # In this process, which has torch already.
            _, module, *arguments = step.arguments
            if module == "specprefill_cli":
                code, out, err = call(*arguments)
                assert code == 0, err
                rows = json.loads(out)["rows"]
            else:
                rows = probes.PROBES[arguments[0]](*arguments[1:])
            assert rows, step.name
    (result,) = run_steps([on_ranks], tmp_path, 600, lambda _: None)
    assert result["state"] == "ok", result["output"]
    assert result["rows"]

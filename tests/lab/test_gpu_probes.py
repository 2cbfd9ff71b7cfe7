"""The probes for machines with a GPU, on this one."""

import json
import warnings
from contextlib import nullcontext

import pytest
import torch

from specprefill_cli.lab import gpu_probes as probes
from specprefill_cli.models.attention_plan import AttentionDevice


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
    assert row["place"].startswith("tests/lab/test_gpu_probes.py:")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("kernels", "tiny:tiny"), ("cudnn", "tiny:tiny", "256")])
def test_probes_give_figures_on_a_cpu(monkeypatch, arguments):
    monkeypatch.setattr(probes, "KEYS", 512)
    monkeypatch.setattr("specprefill_cli.lab.benchmarks.decode.QUOTES", 1)
    assert probes.PROBES[arguments[0]](*arguments[1:])

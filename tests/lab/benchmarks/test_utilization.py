"""Achieved operations a second, and their share of the peak."""

from types import SimpleNamespace

import pytest
import torch

from specprefill_cli.lab.benchmarks.prefill import bench_prefill
from specprefill_cli.lab.benchmarks.utilization import achieved_tflops, known_peak, peak_of
from specprefill_cli.lab.evaluation.runner import Configuration
from specprefill_cli.lab.tables import rates
from specprefill_cli.models.cost import cost_of
from specprefill_cli.settings import Settings


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA H200", 989.4),
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA L40S", 362.0),
        ("NVIDIA L4", 121.0),
        ("Tesla T4", 65.0),
        ("NVIDIA RTX A4000", None),
        ("AMD Instinct MI300X", 1_307.4),
        ("NVIDIA GeForce GTX 1080", None),
    ],
)
def test_peaks_are_found_by_the_name_of_the_device(name, peak):
    assert known_peak(name, torch.bfloat16) == peak
    assert known_peak(name, torch.float32) is None


def test_look_ahead_counts_as_the_drafts_time():
    phases = {"draft_prefill": 1.0, "look_ahead": 1.0, "target_prefill": 4.0, "scoring": 9.0}
    rates = achieved_tflops({"draft_prefill": 6.0, "target_prefill": 2.0}, phases)
    assert rates == {"draft_prefill": 3.0, "target_prefill": 0.5}


def test_peak_counts_every_device(random_pair):
    assert peak_of(random_pair) is None
    assert peak_of(random_pair, 2.0) == 2.0
    random_pair.ranks = SimpleNamespace(size=8)
    assert peak_of(random_pair, 2.0) == 16.0


def test_rows_have_the_rates_of_draft_and_target(random_session):
    base = Settings(max_new_tokens=1, speculate="off", scorer="question", keep=0.3)
    cases = [Configuration("full"), Configuration("select", 0.3, "question")]
    full, select = bench_prefill(random_session, [300], cases, 1, base, lambda _: None, peak_tflops=0.5)
    assert set(full.tflops) == {"target_prefill"}
    assert set(select.tflops) == set(select.mfu) == {"draft_prefill", "target_prefill"}
    flops = cost_of(random_session.pair.target).prefill_flops(300)
    assert full.tflops["target_prefill"] == pytest.approx(flops / full.phases["target_prefill"] / 1e12, rel=0.05)
    assert full.mfu["target_prefill"] == pytest.approx(full.tflops["target_prefill"] / 0.5)
    assert rates(full).startswith("target ")

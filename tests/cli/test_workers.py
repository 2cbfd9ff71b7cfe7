"""The options of `batch` about workers: how many, their GPUs, and `--ray` with and without an address."""

import pytest
import torch

from specprefill_cli.batching.executor import Place
from specprefill_cli.cli.workers import default_workers, devices_of_place, with_address
from specprefill_cli.settings import Settings


@pytest.mark.parametrize(
    ("settings", "gpu", "workers"),
    [
        (Settings(), False, 0),
        (Settings(), True, 1),
        (Settings(devices="cuda:1"), True, 1),
        (Settings(devices="cpu"), True, 0),
        (Settings(tensor_parallel=2), True, 0),
    ],
)
def test_a_session_on_a_gpu_has_a_process_of_its_own(monkeypatch, settings, gpu, workers):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    assert default_workers(settings) == workers


@pytest.mark.parametrize(
    ("devices", "workers", "visible", "shares"),
    [
        ("auto", 2, 4, ["cuda:0,cuda:1", "cuda:2,cuda:3"]),
        ("auto", 3, 2, ["cuda:0", "cuda:0", "cuda:1"]),
        ("cuda:1,cuda:3", 2, 4, ["cuda:1", "cuda:3"]),
        ("cuda:1", 2, 4, ["cuda:1", "cuda:1"]),
        ("auto", 2, 0, ["auto", "auto"]),
        ("cpu", 2, 4, ["cpu", "cpu"]),
    ],
)
def test_workers_share_the_gpus(devices, workers, visible, shares):
    assert [devices_of_place(devices, Place(number, workers), visible) for number in range(workers)] == shares


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (["in.jsonl", "--ray"], ["in.jsonl", "--ray", "local"]),
        (["--ray", "in.jsonl"], ["--ray", "local", "in.jsonl"]),
        (["--ray", "--workers", "2"], ["--ray", "local", "--workers", "2"]),
        (["--ray", "auto", "in.jsonl"], ["--ray", "auto", "in.jsonl"]),
        (["--ray", "head.example:6379"], ["--ray", "head.example:6379"]),
        (["--ray=auto"], ["--ray=auto"]),
        ([], []),
    ],
)
def test_ray_may_have_an_address(given, read):
    assert with_address(given) == read

"""Ray: checks before the first row, and a batch on this machine that loses actors."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from specprefill_cli.batching import BatchEnded
from specprefill_cli.batching.ray_engine import EngineActor, divide_cluster, import_ray, start_ray
from specprefill_cli.errors import SpecprefillError
from tests.helpers.samples import read_jsonl, write_jsonl

SCRIPT = Path(__file__).parent.with_name("helpers") / "batch_workers.py"


def test_a_missing_package_is_one_line_with_its_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SpecprefillError, match=r"need the package ray; install it with .* -m pip install .*") as error:
        import_ray()
    assert len(str(error.value).splitlines()) == 1


def test_an_address_without_a_cluster_is_refused_at_once():
    words = r"--ray 127\.0\.0\.1:9: no Ray cluster there \(.*\); check it with"
    with pytest.raises(SpecprefillError, match=words) as error:
        start_ray(None, "127.0.0.1:9", None)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("resources", "workers", "gpus", "expected"),
    [
        ({"CPU": 32.0, "GPU": 4.0}, None, 1, (4, {"num_gpus": 1, "num_cpus": 8})),
        ({"CPU": 32.0, "GPU": 4.0}, 3, 0, (3, {"num_cpus": 8})),
        ({"CPU": 32.0}, None, 1, (2, {"num_cpus": 16})),
        ({"CPU": 2.0}, 3, 0, None),
        ({"CPU": 32.0, "GPU": 4.0}, 5, 1, None),
    ],
)
def test_workers_share_the_cluster(resources, workers, gpus, expected):
    node = {"Alive": True, "Resources": {name: amount / 2 for name, amount in resources.items()}}
    nodes = [node, node, {"Alive": True, "Resources": {}}, {"Alive": False, "Resources": {"CPU": 1.0}}]
    ray = SimpleNamespace(cluster_resources=lambda: resources, nodes=lambda: nodes)
    if expected is None:
        with pytest.raises(SpecprefillError, match="fewer --workers, or add nodes"):
            divide_cluster(ray, workers, gpus)
    else:
        assert divide_cluster(ray, workers, gpus) == expected


def test_workers_fit_on_nodes_that_differ():
    nodes = [{"Alive": True, "Resources": {"CPU": 64.0, "GPU": gpus}} for gpus in (8.0, 1.0)]
    ray = SimpleNamespace(cluster_resources=lambda: {"CPU": 128.0, "GPU": 9.0}, nodes=lambda: nodes)
    assert divide_cluster(ray, None, 1) == (9, {"num_gpus": 1, "num_cpus": 8})
    assert divide_cluster(ray, None, 2) == (4, {"num_gpus": 2, "num_cpus": 16})
    with pytest.raises(SpecprefillError, match="on one node"):
        divide_cluster(ray, 5, 2)


def test_an_actor_that_does_not_open_after_a_restart_ends_the_batch():
    with pytest.raises(BatchEnded, match="no such model; run again with --resume"):
        EngineActor(Mock(side_effect=SpecprefillError("no such model"))).answer(None)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="the stub kills itself with a signal")
def test_lost_actors_are_replaced_and_their_rows_asked_again(tmp_path):
    """A row is answered if it ends its actor or fails its device once. A row that always does gets an error."""
    pytest.importorskip("ray")
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    questions = ["a", "error x", f"once {tmp_path / 'crashed'}", f"device {tmp_path / 'failed'}", "crash"]
    questions += [f"question {number}" for number in range(30)]
    rows = [{"id": number, "question": text} for number, text in enumerate(questions)]
    write_jsonl(source, *rows)
    command = [sys.executable, str(SCRIPT), str(source), str(out), "2"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    records = read_jsonl(out.read_text())
    assert [record["id"] for record in records] == [*range(len(rows))]
    errors = {record["id"]: record["error"] for record in records if "error" in record}
    assert errors[1] == {"type": "ValueError", "message": "no such thing"}
    assert errors[4]["type"] == "WorkerLost"
    assert "asked 3 times" in errors[4]["message"]
    assert set(errors) == {1, 4}

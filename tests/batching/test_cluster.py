"""Ray: what is checked before the first row, and a batch on this machine that loses actors."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from specprefill_cli.batching.nodes import check_nodes, check_reachable, import_ray
from specprefill_cli.batching.preflight import missing_here, needs_of
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.settings import Settings

SCRIPT = Path(__file__).parent.with_name("helpers") / "batch_workers.py"


@pytest.fixture
def needs(tmp_path, monkeypatch):
    """What a batch in a folder with one document needs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.md").write_text("The gate is green.")
    return needs_of(Settings(), ("a.md", "lost.md"))


def test_a_missing_package_is_one_line_with_its_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        SpecprefillError, match=r"--ray needs the package ray; install it with .* -m pip install .*"
    ) as error:
        import_ray()
    assert len(str(error.value).splitlines()) == 1


def test_an_old_package_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(__version__="2.9.3"))
    with pytest.raises(SpecprefillError, match=r"needs ray 2\.50 or newer, this is 2\.9\.3"):
        import_ray()


def test_an_address_without_a_cluster_is_refused_at_once():
    with pytest.raises(
        SpecprefillError, match=r"--ray 127\.0\.0\.1:9: no Ray cluster there \(.*\); check it with"
    ) as error:
        check_reachable("127.0.0.1:9")
    assert len(str(error.value).splitlines()) == 1
    for address in ("local", "auto"):
        check_reachable(address)


def test_nothing_of_ray_is_imported_without_the_option():
    modules = "specprefill_cli.cli.main, specprefill_cli.batching.cluster, specprefill_cli.batching.processes"
    script = f"import sys, {modules}; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_a_machine_that_has_everything_lacks_nothing(needs):
    assert needs.documents == ("a.md",), "a document that is missing here too is a matter of its rows"
    assert missing_here(needs) is None


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"version": "0.0.1"}, "and 0.0.1 here; install the same version"),
        ({"folder": "/nowhere"}, "the working directory /nowhere cannot be entered"),
        ({"documents": ("a.md", "b.md")}, "b.md: cannot be read there; put the documents on shared storage"),
        ({"settings": Settings(prompt="mine")}, "mine"),
        (
            {
                "settings": Settings(draft="models/draft", target="models/target"),
                "models": ("models/draft", "models/target"),
            },
            "models/draft: there is no such model; put it on shared storage",
        ),
    ],
)
def test_what_a_machine_lacks_is_named(needs, changed, words):
    missing = missing_here(replace(needs, **changed))
    assert words in missing
    assert len(missing.splitlines()) == 1


def fake_ray(monkeypatch, results):
    """A module with as much of Ray as `check_nodes` uses; each node's result is a text, None or an error."""

    def get(node, timeout):
        if isinstance(results[node], Exception):
            raise results[node]
        return results[node]

    strategies = ModuleType("ray.util.scheduling_strategies")
    strategies.NodeAffinitySchedulingStrategy = lambda node, soft: node
    for name in ("ray", "ray.util"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, strategies.__name__, strategies)

    def options(num_cpus, scheduling_strategy):
        return SimpleNamespace(remote=lambda needs: scheduling_strategy)

    return SimpleNamespace(get=get, remote=lambda function: SimpleNamespace(options=options))


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ("a.md: cannot be read there", r"--ray: node second \(10\.0\.0\.2\): a\.md: cannot be read there"),
        (ModuleNotFoundError("No module named 'specprefill_cli'"), r"node second .*No module named 'specprefill_cli'"),
    ],
)
def test_the_node_that_lacks_something_is_named(monkeypatch, result, words):
    nodes = [
        {"NodeID": name, "NodeManagerHostname": name, "NodeManagerAddress": f"10.0.0.{number}"}
        for number, name in enumerate(["first", "second"], 1)
    ]
    check_nodes(fake_ray(monkeypatch, {"first": None, "second": None}), nodes, None)
    with pytest.raises(SpecprefillError, match=words):
        check_nodes(fake_ray(monkeypatch, {"first": None, "second": result}), nodes, None)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="the stub kills itself with a signal")
def test_lost_actors_are_replaced_and_their_rows_asked_again(tmp_path):
    pytest.importorskip("ray")
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    questions = ["a", "error x", f"once {tmp_path / 'crashed'}", *(f"question {number}" for number in range(40))]
    rows = [{"id": number, "question": text} for number, text in enumerate(questions)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, str(SCRIPT), str(source), str(out), "2", "ray"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [record["id"] for record in records] == [*range(len(rows))]
    assert [record["id"] for record in records if "error" in record] == [1]
    told = [line for line in done.stderr.splitlines() if "opened" not in line]
    assert len(told) == 1, "Ray itself says nothing"
    assert "was lost" in told[0]
    assert "it is started again" in told[0]

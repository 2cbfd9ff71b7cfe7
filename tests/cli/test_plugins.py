"""Modes and scorers of another installed package: found everywhere with no other file touched."""

import json
import os
import subprocess
import sys
from textwrap import dedent

import pytest

from specprefill_cli.resources import packaged_folder

pytestmark = pytest.mark.slow

MANUAL = str(packaged_folder("sample_docs") / "kestrel-pump-manual.md")
MODULE = """
    from specprefill_cli.prefill.modes.full import FullMode
    from specprefill_cli.prefill.scorers.random import RandomScorer


    class CopyMode(FullMode):
        name = "copy"


    class CoinScorer(RandomScorer):
        name = "coin"
"""
ENTRY_POINTS = """
    [specprefill.modes]
    copy = example_plugin:CopyMode

    [specprefill.scorers]
    coin = example_plugin:CoinScorer
"""
# Completion goes by the program's name.
PROGRAM = "import sys; sys.argv[0] = 'specprefill'; from specprefill_cli.cli.main import main; main()"
BROKEN = """
    [specprefill.scorers]
    torn = example_plugin:NoSuchScorer
    lost = no_such_package:Scorer

    [specprefill.modes]
    bent = no_such_package:Mode
"""


def install(folder, entry_points):
    """Install a package by hand: a module beside its metadata."""
    (folder / "example_plugin.py").write_text(dedent(MODULE))
    metadata = folder / "example_plugin-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: example-plugin\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(dedent(entry_points))


@pytest.fixture
def run(tmp_path):
    """Run `specprefill` in a process of its own, beside an installed plugin."""

    def specprefill(*arguments, entry_points=ENTRY_POINTS, **environment):
        if not (tmp_path / "example_plugin.py").exists():
            install(tmp_path, entry_points)
        path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", os.getcwd())])
        return subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments],
            capture_output=True,
            text=True,
            encoding="utf-8",
            env=os.environ | {"PYTHONPATH": path, "COLUMNS": "200"} | environment,
        )

    return specprefill


def test_plugins_are_listed(run):
    done = run("plugins", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["plugins"] == [
        {"kind": "mode", "name": "copy", "source": "example_plugin:CopyMode", "error": None},
        {"kind": "scorer", "name": "coin", "source": "example_plugin:CoinScorer", "error": None},
    ]
    done = run("plugins")
    assert done.returncode == 0
    assert "copy" in done.stdout
    assert "example_plugin:CoinScorer" in done.stdout


@pytest.mark.parametrize("arguments", [("plugins",), ("plugins", "--json")])
def test_each_broken_plugin_is_one_warning(run, arguments):
    done = run(*arguments, entry_points=BROKEN)
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert len(lines) == 3
    assert all(line.startswith(("warning: scorer '", "warning: mode '")) for line in lines)
    lost = "'lost' of the plugin no_such_package:Scorer cannot be loaded (No module named 'no_such_package')"
    assert any(lost in line for line in lines)
    assert "Traceback" not in done.stdout + done.stderr


def test_broken_plugin_fails_only_where_it_is_named(run):
    ask = ("ask", MANUAL, "Who?", "--quiet", "--max-new-tokens", "2")
    assert run(*ask, "--mode", "select", "--scorer", "lexical", entry_points=BROKEN).returncode == 0
    assert run(*ask).returncode == 0
    done = run(*ask, "--mode", "select", "--scorer", "torn")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "'torn' of the plugin example_plugin:NoSuchScorer cannot be loaded" in done.stderr


def test_plugins_are_choices(run):
    help_text = run("ask", "--help").stdout
    assert "auto, full, select, draft-kv, hybrid or copy" in help_text
    assert "lexical, random or coin" in help_text
    assert (
        "use one of auto, full, select, draft-kv, hybrid, copy" in run("ask", MANUAL, "Who?", "--mode", "fast").stderr
    )
    assert run("config", "set", "scorer", "best").stderr.endswith("lexical, random, coin\n")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("specprefill ask a.pdf Who --mode co", "copy"),
        ("specprefill ask a.pdf Who --scorer co", "coin"),
        ("specprefill evaluate q.jsonl --scorer lexical,co", "lexical,coin"),
        ("specprefill bench prefill --modes full,co", "full,copy"),
    ],
)
def test_shell_completes_plugins(run, line, expected):
    shell = {"_SPECPREFILL_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    done = run(**shell)
    assert done.stdout.split() == [expected]


def test_bench_and_evaluate_run_plugins(run, tmp_path):
    sizes = ("--lengths", "300", "--repeat", "1", "--no-baseline", "--json")
    done = run("bench", "prefill", "--modes", "copy,select", "--scorer", "coin", "--keep", "0.3", *sizes)
    assert done.returncode == 0, done.stderr
    assert [row["mode"] for row in json.loads(done.stdout)["rows"]] == ["copy", "select"]
    questions = tmp_path / "questions.jsonl"
    row = {"context": "The gate is green. " * 40, "question": "Which color is the gate?", "answers": ["green"]}
    questions.write_text(json.dumps(row))
    flags = ("--modes", "copy,select", "--scorer", "coin", "--keep", "0.3", "--max-new-tokens", "2", "--json")
    done = run("evaluate", str(questions), *flags)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [(row["mode"], row["scorer"]) for row in rows] == [("copy", None), ("select", "coin")]


def test_a_plugin_with_the_name_of_a_builtin_is_reported(run):
    entry_points = """
        [specprefill.scorers]
        question = example_plugin:CoinScorer
    """
    (plugin,) = json.loads(run("plugins", "--json", entry_points=entry_points).stdout)["plugins"]
    assert "the name of a built-in scorer" in plugin["error"]

"""Modes and scorers of another installed package are found everywhere."""

import importlib
import json
import sys
from textwrap import dedent

import pytest

from specprefill_cli.cli.options import complete
from specprefill_cli.prefill.registry import MODES, SCORERS
from tests.helpers.samples import MANUAL, write_jsonl

pytestmark = pytest.mark.slow

MODULE = """
    from specprefill_cli.prefill.modes import FullMode
    from specprefill_cli.prefill.scorers.lexical import RandomScorer


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
BROKEN = """
    [specprefill.scorers]
    torn = example_plugin:NoSuchScorer
    lost = no_such_package:Scorer

    [specprefill.modes]
    bent = no_such_package:Mode
"""


@pytest.fixture
def run(call, tmp_path, monkeypatch):
    """Run `specprefill` in this process, with a plugin package of one module and its metadata."""

    def forget_plugins():
        for registry in (MODES, SCORERS):
            vars(registry).pop("plugins", None)
        sys.modules.pop("example_plugin", None)

    def specprefill(*arguments, entry_points=ENTRY_POINTS):
        (tmp_path / "example_plugin.py").write_text(dedent(MODULE))
        metadata = tmp_path / "example_plugin-1.0.dist-info"
        metadata.mkdir(exist_ok=True)
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: example-plugin\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(dedent(entry_points))
        importlib.invalidate_caches()
        forget_plugins()
        return call(*arguments)

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for registry in (MODES, SCORERS):
        monkeypatch.setattr(registry, "loaded", {})
    yield specprefill
    forget_plugins()


def test_broken_plugin_fails_only_where_it_is_named(run):
    ask = ("ask", MANUAL, "Who?", "--quiet", "--max-new-tokens", "2")
    assert run(*ask, "--mode", "select", "--scorer", "lexical", entry_points=BROKEN)[0] == 0
    assert run(*ask, entry_points=BROKEN)[0] == 0
    code, _, err = run(*ask, "--mode", "select", "--scorer", "torn", entry_points=BROKEN)
    assert (code, len(err.splitlines())) == (1, 1)
    assert "'torn' of the plugin example_plugin:NoSuchScorer cannot be loaded" in err


def test_plugins_are_choices(run):
    assert "use one of auto, full, select, draft-kv, hybrid, copy" in run("ask", MANUAL, "Who?", "--mode", "fast")[2]
    assert run("config", "set", "scorer", "best")[2].endswith("lexical, random, coin\n")


def test_plugins_are_completed(run):
    run("pairs")
    assert complete("mode")("co") == ["copy"]
    assert complete("scorer")("co") == ["coin"]
    assert complete("scorer", several=True)("lexical,co") == ["lexical,coin"]


def test_bench_and_evaluate_run_plugins(run, tmp_path):
    sizes = ("--lengths", "300", "--repeat", "1", "--no-baseline", "--json")
    chosen = ("--modes", "copy,select", "--scorer", "coin", "--keep", "0.3")
    code, out, err = run("bench", "prefill", *chosen, *sizes)
    assert code == 0, err
    assert [row["mode"] for row in json.loads(out)["rows"]] == ["copy", "select"]
    row = {"context": "The gate is green. " * 40, "question": "Which color is the gate?", "answers": ["green"]}
    questions = write_jsonl(tmp_path / "questions.jsonl", row)
    code, out, err = run("evaluate", questions, *chosen, "--max-new-tokens", "2", "--json")
    assert code == 0, err
    assert [(row["mode"], row["scorer"]) for row in json.loads(out)["rows"]] == [("copy", None), ("select", "coin")]


def test_a_plugin_cannot_take_the_name_of_a_builtin(run):
    entry_points = """
        [specprefill.scorers]
        question = example_plugin:CoinScorer
    """
    run("pairs", entry_points=entry_points)
    assert type(SCORERS["question"]).__name__ == "QuestionScorer"
    assert list(SCORERS).count("question") == 1

"""The figures of the README: measured at small sizes, written as a table, and drawn."""

import json
import re
from dataclasses import replace

from specprefill_cli.lab.readme_numbers import BEGIN, END, PLAN, measure, with_table
from tests.helpers.samples import write_jsonl

# The plan's options with many questions or tokens, made small.
SMALL = (
    ("--pair smollm2", "--pair tiny"),
    (r"--limit \d+", "--limit 2"),
    ("--distractors 19", "--distractors 1"),
    (r"--lengths \S+", "--lengths 256,512"),
    (r"--repeat \d", "--repeat 1"),
    (r"--keep 0\.\S+", "--keep 0.5,0.4"),
    ("blend,heads,lexical", "lexical,random"),
)


def make_small(step):
    command = step.command
    for pattern, small in SMALL:
        command = re.sub(pattern, small, command)
    return replace(step, command=command)


def test_the_table_has_the_figures_and_replaces_only_what_stands_between_the_marks(call, tmp_path):
    rows = [
        {"id": str(n), "context": f"The {name} gate is painted {colour}.", "question": "Which gate?", "answers": [name]}
        for n, (name, colour) in enumerate((("north", "red"), ("south", "blue"), ("west", "green")))
    ]
    write_jsonl(tmp_path / "questions.jsonl", *rows)
    steps = [make_small(step) for step in PLAN[1:]]
    figures = measure(steps, tmp_path / "questions.jsonl", tmp_path, lambda arguments: call(*arguments)[1])
    answers, _, _, recall, speed, confirmed = figures["rows"]
    assert answers["what"].endswith("n = 2, keep 0.1")
    assert answers["full"].startswith("F1 ")
    assert "questions.jsonl --pair tiny --limit 2 --distractors 1 --modes full,select --keep 0.5" in answers["command"]
    assert [row["mode"] for row in answers["measured"]] == ["full", "select", "select"]
    fast = next(row for row in speed["measured"] if row["length"] == 512 and row["mode"] == "select")
    assert speed["select"] == f"{fast['ttft_seconds']:.2g} s ({fast['speedup']:.1f}x)"
    assert recall["select"].startswith(f"{recall['measured'][0]['recall']:.1f} % [")
    assert confirmed["measured"][0]["same"] == 2
    assert "first token" in confirmed["select"]
    assert all("<svg" in (tmp_path / step.plot[0]).read_text(encoding="utf-8") for step in PLAN if step.plot)
    measured = json.loads(json.dumps(figures))
    readme = with_table(f"before\n{BEGIN}\nold\n{END}\nafter\n", measured)
    assert readme.startswith(f"before\n{BEGIN}\n| what |")
    assert readme.endswith(f"|\n{END}\nafter\n")
    assert "old" not in readme
    assert readme.count("\n| ") == 8
    assert with_table(readme, measured) == readme

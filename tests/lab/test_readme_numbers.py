"""The figures of the README: measured at small sizes, written as a table, and drawn."""

import json

import pytest

from specprefill_cli.lab.readme_numbers import BEGIN, END, PLOTS, Answers, Confirmed, Kept, Speed, measure, with_table


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("numbers")
    rows = [
        {"id": str(n), "context": f"The {name} gate is painted {colour}.", "question": "Which gate?", "answers": [name]}
        for n, (name, colour) in enumerate((("north", "red"), ("south", "blue"), ("west", "green")))
    ]
    questions = folder / "questions.jsonl"
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    plan = (
        Answers(pair="tiny", limit=2, distractors=1, keep=0.5),
        Speed(pair="tiny", lengths=(256, 512), keeps=(0.5,), repeat=1, plotted=True),
        Kept(pair="tiny", limit=2, distractors=1, scorers=("lexical", "random"), keeps=(0.5, 0.2)),
        Confirmed(pair="tiny", limit=2, distractors=1, keeps=(0.5,)),
    )
    return measure(plan, questions, folder), folder


def test_rows_hold_the_figures_and_the_commands(figures):
    answers, speed, kept, confirmed = figures[0]["rows"]
    assert answers["what"].endswith("among 1 other paragraphs, n = 2, keep 0.5")
    assert answers["full"].startswith("F1 ")
    assert "--limit 2 --distractors 1 --modes full,select --keep 0.5" in answers["command"]
    assert [row["n"] for row in answers["measured"]] == [2, 2]
    fast = next(row for row in speed["measured"] if row["length"] == 512 and row["mode"] == "select")
    assert speed["select"] == f"{fast['ttft_seconds']:.2g} s ({fast['speedup']:.1f}x)"
    assert kept["select"].startswith(f"{kept['measured'][0]['recall']:.1f} % [")
    assert "--scorer lexical,random --keep 0.5,0.2" in kept["command"]
    assert confirmed["measured"][0]["same"] == 2
    assert "first token" in confirmed["select"]
    assert all("<svg" in (figures[1] / name).read_text(encoding="utf-8") for name in PLOTS.values())


def test_the_table_replaces_only_what_stands_between_the_marks(figures):
    measured = json.loads(json.dumps(figures[0]))
    readme = with_table(f"before\n{BEGIN}\nold\n{END}\nafter\n", measured)
    assert readme.startswith(f"before\n{BEGIN}\n| what |")
    assert readme.endswith(f"|\n{END}\nafter\n")
    assert "old" not in readme
    assert readme.count("\n| ") == 6
    assert with_table(readme, measured) == readme

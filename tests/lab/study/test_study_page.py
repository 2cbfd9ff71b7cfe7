"""The study's plots are well-formed, and its findings state what the figures show."""

from io import StringIO

from rich.console import Console

from specprefill_cli.lab.study.figures import budget_plot, finite, sections, study_plots, study_view
from tests.helpers.output import svg_texts

COST = {"keep": None, "n": 500, "ttft_seconds": 0.5, "ttft_ratio": 1.0, "equal_ttft": True}
COST |= {"first_token_kl": 0.25, "gap_recovered": 0.5, "same_answer": 0.75}


def cost_row(name, f1, **fields):
    return {**COST, "name": name, "f1": f1, "f1_low": f1 - 2, "f1_high": f1 + 2, **fields}


RECORD = {
    "schema": 1,
    "pair": {"draft": "d", "target": "t"},
    "questions": 1_234,
    "first_token_changed": 0.25,
    "answer_changed": 0.5,
    "true_error_by_layer": {"keys": [0.0, 0.1, 0.4], "values": [0.0, 0.15, None]},
    "variants": {
        name: {"kl_median": value, "kl_mean": 0.9, "same_first_token": 0.75}
        for name, value in (("mapped only", 0.625), ("zeros", 0.5), ("wrong document", 2.0))
    },
    "first_token_by_budget": [
        {"recompute": budget, "chosen_by": order, "kl_median": value, "kl_mean": value, "same_first_token": 0.5}
        for order, values in (("risk", (0.6, 0.2, 0.1)), ("random", (0.6, 0.4, 0.3)))
        for budget, value in zip((0.0, 0.15, 0.5), values, strict=True)
    ],
    "drift": [
        {
            "name": "mapped only",
            "n": 1_234,
            "kl_by_token": [0.5, 0.75],
            "kl_mean": 0.625,
            "kl_low": 0.5,
            "kl_high": 0.75,
            "parted_after": {"1": 0.25, "4": 0.5, "16": 0.75, "64": 0.875},
            "answer_changed": 0.5,
        }
    ],
    "equal_cost": {
        "reference": "draft-kv",
        "tolerance": 0.05,
        "tuned": [{"mode": "select", "keep": 0.4, "pilot_ttft_seconds": 0.5, "target_ttft_seconds": 0.5}],
        "rows": [
            cost_row("full", 60.0, ttft_ratio=2.0, equal_ttft=False),
            cost_row("select", 41.5, keep=0.4, ttft_ratio=1.2, equal_ttft=False),
            cost_row("draft-kv", 40.0),
            cost_row("random tokens recomputed", 33.0),
            cost_row("same tokens, rest dropped", 41.5, ttft_ratio=0.9, equal_ttft=False),
        ],
        "duels": [
            {"against": "same tokens, rest dropped", "difference": -1.5, "low": -3.0, "high": -0.5, "verdict": "worse"}
        ],
    },
}


def shown(record):
    console = Console(file=StringIO(), width=200)
    console.print(study_view(record))
    return console.file.getvalue()


def test_plots_are_well_formed_and_show_their_data():
    plots = study_plots(RECORD)
    assert set(plots) == {"error_by_layer", "kl_by_budget", "kl_by_token"}
    assert {"keys", "values", "target layer"} <= set(svg_texts(plots["error_by_layer"]))
    assert {"riskiest chunks", "random chunks", "15%"} <= set(svg_texts(plots["kl_by_budget"]))
    risk, random = budget_plot(RECORD["first_token_by_budget"]).args[-1]
    assert risk.points == [(0.0, 0.6), (0.15, 0.2), (0.5, 0.1)]
    assert random.points == [(0.0, 0.6), (0.15, 0.4), (0.5, 0.3)]


def test_few_questions_get_no_verdict():
    assert "No verdicts: too few questions (n < 20)." in shown(RECORD | {"questions": 19})
    assert "No verdicts" not in shown(RECORD)


def test_omits_parts_that_were_not_measured():
    record = RECORD | {"equal_cost": None, "answer_changed": None, "drift": []}
    assert [section.title for section in sections(record)] == [
        "Which layers are mapped well?",
        "Does recomputing repair it?",
        "What does draft KV win at equal TTFT?",
    ]
    assert "Not measured: needs answers" in shown(record)


def test_non_finite_numbers_become_none():
    values = {"a": [float("nan"), 1.0, (float("inf"), "x")], "b": True}
    assert finite(values) == {"a": [None, 1.0, [None, "x"]], "b": True}

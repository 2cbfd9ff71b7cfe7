"""The calibrated gate: the search for its threshold, and `calibrate --gate` on a random pair."""

import json
import random
from dataclasses import replace

import pytest

from specprefill_cli.draft_kv.projection import load_calibration, set_calibration
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.lab.study import gate as gate_calibration
from specprefill_cli.lab.study.gate import (
    BUDGETS,
    Outcome,
    calibrate_gate,
    fit_gate,
    largest_threshold,
    prompt_outcomes,
)
from specprefill_cli.settings import Settings
from tests.helpers.samples import write_jsonl
from tests.lab.study.test_study import item

TEXT = "The north gate opens at nine. Tickets cost four euros. The keeper lives by the old mill near the river. " * 2


def outcomes(pairs):
    """One prompt for each (risk, KL)."""
    return [Outcome(prompt=number, budget=0.15, risk=risk, kl=kl) for number, (risk, kl) in enumerate(pairs)]


# Means up to each risk: 0, 0.025, 0.05, 0.075, 0.24.
RISING = [(0.3, 0.1), (0.5, 0.9), (0.1, 0.0), (0.4, 0.15), (0.2, 0.05)]


@pytest.mark.parametrize(
    ("pairs", "target", "threshold"),
    [
        *((RISING, *case) for case in ((0.0, 0.1), (0.03, 0.2), (0.06, 0.3), (0.1, 0.4), (1.0, 0.5))),
        # A bad outcome at low risk may be outweighed, but not hidden.
        ([(0.1, 0.5), (0.2, 0.0), (0.3, 0.0)], 0.2, 0.3),
        ([(0.1, 0.5), (0.2, 0.0), (0.3, 0.2)], 0.2, 0.0),
        # Nothing is acceptable where every mean is above the target.
        ([(0.1, 0.3), (0.2, 0.2), (0.3, 0.6)], 0.1, 0.0),
        # Outcomes of equal risk are accepted together or not at all.
        ([(0.1, 0.0), (0.2, 0.0), (0.2, 0.9)], 0.1, 0.1),
    ],
)
def test_the_threshold_is_the_largest_risk_with_a_mean_kl_within_the_target(pairs, target, threshold):
    assert largest_threshold(outcomes(pairs), target, 1) == threshold


def test_a_threshold_rests_on_enough_prompts_not_on_one_prompt_with_many_budgets():
    pairs = [(0.01 * step, 0.0) for step in range(1, 9)]
    assert largest_threshold(outcomes(pairs), 0.1, 8) == pytest.approx(0.08)
    assert largest_threshold(outcomes(pairs), 0.1, 9) == 0
    same = [Outcome(prompt=0, budget=risk, risk=risk, kl=kl) for risk, kl in pairs]
    assert largest_threshold(same, 0.1, 2) == 0


def test_large_budgets_do_not_make_up_for_small_ones():
    large = [Outcome(prompt=number, budget=0.5, risk=0.1, kl=0.0) for number in range(8)]
    small = [replace(outcome, budget=0.05, risk=0.2, kl=0.3) for outcome in large]
    assert largest_threshold([*large, *small], 0.2, 1) == 0.1
    assert largest_threshold([*large, *small], 0.3, 1) == 0.2


def test_the_gate_says_how_well_risk_separates():
    generator = random.Random(2)
    kl = [generator.choice((0.0, 0.5)) for _ in range(60)]
    gate = fit_gate(outcomes([(value + 0.4 * generator.random(), value) for value in kl]), 0.1)
    assert (gate.auroc, gate.n, gate.target) == (1.0, 60, 0.1)
    gate = fit_gate(outcomes([(0.1, 0.3), (0.2, 0.2)] * 20), 0.1, 1)
    assert (gate.threshold, gate.n, gate.auroc) == (0, 40, None), "all are above the target"


def test_outcomes_have_every_budget_and_less_risk_with_more_recomputed(random_session):
    question = item(text=TEXT * 8)
    settings = Settings(mode="draft-kv", scorer="question", look_ahead=1)
    measured = prompt_outcomes(random_session.request(question.collection, question.question, settings), 3)
    assert [outcome.budget for outcome in measured] == list(BUDGETS)
    risks = [outcome.risk for outcome in measured]
    assert risks == sorted(risks, reverse=True)
    assert risks[-1] < risks[0]
    assert all(outcome.kl > 1e-3 and outcome.prompt == 3 for outcome in measured)


def test_the_command_stores_gates_with_the_maps(call_json, random_session, tmp_path, monkeypatch):
    for module in ("answering", "lab"):
        monkeypatch.setattr(f"specprefill_cli.{module}.session.open_session", lambda *_args, **_options: random_session)
    monkeypatch.setattr(gate_calibration, "FEWEST_PROMPTS", 2)
    row = {"context": TEXT, "question": "When does the gate open?", "answers": ["nine"]}
    questions = write_jsonl(tmp_path / "questions.jsonl", {"id": "0", **row}, {"id": "1", **row})
    options = ("--distractors", "0", "--look-ahead", "1", "--out", str(tmp_path / "out"), "--json")
    gate = call_json("calibrate", "--gate", questions, "--gate-kl", "0", *options)["gates"]["exact-0-draft"]
    assert (gate["threshold"], gate["target"], gate["n"]) == (0, 0, 2), "a random map gives nothing to accept"
    stored = load_calibration(tmp_path / "out", random_session.pair).kv_map.gate
    assert vars(stored) == gate
    description = json.loads((tmp_path / "out" / "kv_map.json").read_text())
    description["maps"]["exact-0-draft"]["gate"]["signal"] = "mood"
    (tmp_path / "out" / "kv_map.json").write_text(json.dumps(description))
    with pytest.raises(SpecprefillError, match="not a file of draft-KV maps"):
        load_calibration(tmp_path / "out", random_session.pair)


def test_refuses_pairs_without_maps_and_too_few_questions(random_session):
    with pytest.raises(SpecprefillError, match="1 questions fit the pair; give at least 20"):
        calibrate_gate(random_session, [item()], Settings(look_ahead=1), 0.1, lambda _: None)
    set_calibration(random_session.pair, None)
    with pytest.raises(SpecprefillError, match="no maps of draft KV; give --text FILES too"):
        calibrate_gate(random_session, [item()], Settings(look_ahead=1), 0.1, lambda _: None)


def test_the_gate_knows_the_smallest_risk_of_each_budget_and_larger_budgets_answer_for_those_between():
    pairs = {0.05: [0.5, 0.4], 0.3: [0.3, 0.2], 0.5: [0.1, 0.15]}
    part = [
        Outcome(prompt=number, budget=budget, risk=risk, kl=0.0)
        for budget, risks in pairs.items()
        for number, risk in enumerate(risks)
    ]
    gate = fit_gate(part, 0.1, 1)
    assert gate.smallest_risks == {"0.05": 0.4, "0.3": 0.2, "0.5": 0.1}
    assert [gate.smallest_risk(share) for share in (0.0, 0.05, 0.06, 0.3, 0.4, 0.6)] == [0.4, 0.4, 0.2, 0.2, 0.1, 0.0]

"""`specprefill calibrate --heads` from end to end on a random pair."""

import json

import pytest

from specprefill_cli.lab.calibration.auto_keep import MASSES
from specprefill_cli.prefill.scoring_heads import load_heads

TEXT = "The north gate opens at nine. Tickets cost four euros. The keeper lives by the old mill near the river. " * 2


@pytest.fixture
def calibrate(call, random_session, tmp_path, monkeypatch):
    """Run the command on 20 questions; returns exit code, standard output and standard error."""
    monkeypatch.setattr("specprefill_cli.answering.session.open_session", lambda *_args, **_more: random_session)
    monkeypatch.setattr("specprefill_cli.lab.session.LONGEST_ANSWER", 2)
    random_session.pair.scoring_heads = None
    path = tmp_path / "questions.jsonl"
    row = {"context": TEXT, "question": "When does the gate open?", "answers": ["nine"]}
    path.write_text("".join(json.dumps({"id": str(n), **row}) + "\n" for n in range(20)))

    def run(*arguments):
        return call(
            "calibrate",
            "--heads",
            str(path),
            "--distractors",
            "0",
            "--look-ahead",
            "1",
            "--out",
            str(tmp_path / "out"),
            *arguments,
        )

    return run


def test_evidence_has_f1_and_kept_ratio_for_each_mass(calibrate, random_session, tmp_path):
    code, out, err = calibrate("--answers", "1", "--json")
    assert code == 0
    printed = json.loads(out)
    evidence = printed["evidence"]
    assert evidence["auto_questions"] == 1
    assert {f"auto_f1_{mass:g}" for mass in MASSES} | {"auto_f1_full"} <= set(evidence)
    assert 0 < evidence["auto_kept_0.05"] <= evidence["auto_kept_0.8"] <= 1
    stored = load_heads(tmp_path / "out", random_session.pair.draft)
    assert stored.evidence == evidence
    # Random answers are all wrong, so that the mass found by recall is kept.
    assert {value for name, value in evidence.items() if name.startswith("auto_f1")} == {0.0}
    assert "no answer had a word right (questions: 1)" in err
    assert stored.auto_mass not in MASSES


def test_rejects_unusable_output_folder_before_loading_models(calibrate, tmp_path, monkeypatch):
    monkeypatch.setattr("specprefill_cli.answering.session.open_session", None)
    code, _, err = calibrate("--out", str(tmp_path / "questions.jsonl"))
    assert code == 2
    assert "questions.jsonl: cannot be made" in err


def test_mass_is_tuned_by_recall_if_no_answers_are_requested(calibrate):
    code, out, err = calibrate("--answers", "0")
    assert code == 0
    assert "mass kept by --keep auto: " in out
    assert "auto_f1" not in out
    assert "warning" not in err


def test_warns_and_keeps_heads_if_no_prompt_fits(calibrate, random_session):
    random_session.pair.target.context = 40
    code, out, err = calibrate("--answers", "1")
    assert code == 0
    assert "auto_f1" not in out
    assert "no prompt fits the target" in err

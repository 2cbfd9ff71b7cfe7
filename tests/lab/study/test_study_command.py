"""`specprefill study` from end to end on a random pair, and the arguments it rejects."""

import json

import pytest

from specprefill_cli.lab.study.measurements import BUDGETS

TEXTS = (
    "The north gate opens at nine. The keeper lives by the mill. " * 8,
    "Rain fell on the harbour all day long. " * 12,
)


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "questions.jsonl"
    rows = [{"id": str(n), "context": text, "question": "When?", "answers": ["nine"]} for n, text in enumerate(TEXTS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.slow
def test_study_writes_json_plots_and_html(call, random_session, questions, tmp_path, monkeypatch):
    monkeypatch.setattr("specprefill_cli.answering.session.open_session", lambda *_args, **_options: random_session)
    monkeypatch.setattr("specprefill_cli.lab.session.LONGEST_ANSWER", 3)
    out = tmp_path / "a" / "study"
    options = "--answers 2 --distractors 0 --scorer question --look-ahead 1 --quiet"
    code, printed, _ = call("study", str(questions), "--out", str(out), *options.split())
    assert code == 0
    record = json.loads((out / "study.json").read_text())
    assert record["schema"] == 1
    assert record["questions"] == 2
    assert {row["n"] for row in record["equal_cost"]["rows"]} == {2}
    assert len(record["first_token_by_budget"]) == 2 * len(BUDGETS)
    plots = ("error_by_layer_and_depth", "error_by_layer", "kl_by_budget", "kl_by_token")
    assert {path.name for path in out.iterdir()} == {"study.json", "study.html", *(f"{name}.svg" for name in plots)}
    assert (out / "study.html").read_text().count("<svg") == 4
    assert "same tokens, rest dropped" in printed


def test_rejects_a_folder_that_cannot_be_made(call, questions):
    code, _, err = call("study", str(questions), "--out", str(questions / "o"))
    assert (code, err.count("\n")) == (2, 1)
    assert "cannot be made" in err

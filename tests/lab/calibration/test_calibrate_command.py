"""`specprefill calibrate --heads` and `--answerable` from end to end on a random pair."""

import json

import pytest

from specprefill_cli.answering.confidence import load_answerable
from specprefill_cli.documents.document import one_page_document
from specprefill_cli.errors import UsageError
from specprefill_cli.lab.commands.options import refuse_ranks
from specprefill_cli.prefill.calibration import load_heads
from specprefill_cli.record import NOT_FOUND
from tests.helpers.samples import write_jsonl

TEXT = "The north gate opens at nine. Tickets cost four euros. The keeper lives by the old mill near the river. " * 2


@pytest.fixture
def calibrate(call, random_session, tmp_path, monkeypatch):
    """Run the command on 20 questions; returns exit code, standard output and standard error."""
    for module in ("answering", "lab"):
        monkeypatch.setattr(f"specprefill_cli.{module}.session.open_session", lambda *_args, **_options: random_session)
    random_session.pair.scoring_heads = None
    row = {"context": TEXT, "question": "When does the gate open?", "answers": ["nine"]}
    path = write_jsonl(tmp_path / "questions.jsonl", *({"id": str(n), **row} for n in range(20)))

    def run(*arguments, step="--heads", questions=path):
        options = ("--distractors", "0", "--look-ahead", "1", "--out", str(tmp_path / "out"))
        return call("calibrate", step, str(questions), *options, *arguments)

    return run


def test_heads_and_the_mass_of_keep_auto_are_stored(calibrate, random_session, tmp_path):
    code, out, _ = calibrate("--json")
    assert code == 0
    printed = json.loads(out)
    stored = load_heads(tmp_path / "out", random_session.pair.draft)
    assert stored.evidence == printed["evidence"]
    # No window is evaluated, because the prompt is shorter than four of the smallest windows.
    assert (stored.evidence["questions"], stored.window) == (20, None)
    assert stored.auto_mass == printed["auto_mass"] > 0
    code, out, err = calibrate()
    assert (code, "warning" in err) == (0, False)
    assert "mass kept by --keep auto: " in out


def test_states_of_the_target_tell_whether_the_text_has_an_answer(calibrate, random_session, tmp_path, monkeypatch):
    pairs = ("When?", ["nine"]), ("Kalmar?", [])
    rows = [{"context": TEXT, "question": question, "answers": answers} for question, answers in pairs]
    few, many = (write_jsonl(tmp_path / f"{count}.jsonl", *rows * count) for count in (9, 30))
    code, _, err = calibrate(step="--answerable", questions=few)
    assert (code, "answerable: 18 questions, 50% of them with answers" in err) == (1, True)
    assert calibrate(step="--answerable", questions=many)[0] == 0
    random_session.answerable = load_answerable(tmp_path / "out", random_session.pair.target)
    documents = [one_page_document("t", TEXT)]
    asked = (random_session.ask(documents, row["question"]).finished() for row in rows)
    assert [(answer.answerable, answer.answer == NOT_FOUND) for answer in asked] == [(True, False), (False, True)]
    monkeypatch.setattr("specprefill_cli.answering.session.MOST_READ", 0)
    assert random_session.ask(documents, "When?").answerable_model is None


def test_several_ranks_are_refused():
    with pytest.raises(UsageError, match="calibrate runs in one process"):
        refuse_ranks(2, "calibrate")

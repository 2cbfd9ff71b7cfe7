"""The question sets `unseen`, `ordinary` and `twostep`: complete, and never tuned on."""

import re
from collections import Counter
from pathlib import Path

import pytest

from specprefill_cli.lab.evaluation.datasets import read_items, read_rows
from specprefill_cli.lab.evaluation.metrics import contains_answer
from specprefill_cli.training.corpus import LONGEST_CONTEXT

DATA = Path(__file__).with_name("data")
UNSEEN, ORDINARY = DATA / "unseen" / "questions.jsonl", DATA / "ordinary" / "questions.jsonl"
LANGUAGES, UNSEEN_LANGUAGES = (DATA / name / "questions.jsonl" for name in ("languages", "languages-unseen"))
TWO_STEP = DATA / "twostep" / "questions.jsonl.xz"
LONGEST_QUOTE = 4


def normalised_words(text):
    return "".join(character if character.isalnum() else " " for character in text.lower()).split()


@pytest.mark.parametrize("path", [UNSEEN, ORDINARY, LANGUAGES, UNSEEN_LANGUAGES], ids=lambda path: path.parent.name)
def test_every_document_has_questions_and_none_is_there_twice(path):
    rows = read_rows(path)
    assert {row["documents"][0] for row in rows} == {file.name for file in path.parent.iterdir()} - {path.name}
    assert len({row["id"] for row in rows}) == len({row["question"] for row in rows}) == len(rows)


def test_unseen_answers_stand_in_their_documents_and_questions_quote_nothing():
    for item in read_items(UNSEEN, None, 0, 0):
        text = item.collection.text
        assert item.collection.warnings == []
        # Not as a part of a word.
        assert all(re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", text) for answer in item.answers), item.identifier
        assert not any(contains_answer(item.question, [answer]) for answer in item.answers), item.identifier
        question, document = normalised_words(item.question), normalised_words(text)
        runs = {tuple(document[start : start + LONGEST_QUOTE + 1]) for start in range(len(document))}
        quoted = [question[at : at + LONGEST_QUOTE + 1] for at in range(len(question) - LONGEST_QUOTE)]
        assert not [run for run in quoted if tuple(run) in runs], item.identifier


def test_an_ordinary_answer_stands_in_its_evidence():
    rows = read_rows(ORDINARY)
    kinds = Counter(row["kind"] for row in rows)
    assert kinds["single"] >= 150
    assert min(kinds["two-step"], kinds["none"]) >= 20
    # Reading refuses evidence that does not stand in the documents.
    for row, item in zip(rows, read_items(ORDINARY, None, 0, 0), strict=True):
        assert bool(item.answers) == bool(item.facts) == (row["kind"] != "none"), item.identifier
        assert len(item.facts) >= 2 or row["kind"] != "two-step", item.identifier
        evidence = [item.collection.text[start:end] for start, end in item.facts]
        assert not item.answers or any(answer in text for answer in item.answers for text in evidence), item.identifier


@pytest.mark.parametrize(("path", "languages"), [(LANGUAGES, 10), (UNSEEN_LANGUAGES, 8)])
def test_an_answer_in_another_language_stands_once_in_its_document(path, languages):
    rows = read_rows(path)
    assert len({row["language"] for row in rows}) == languages
    assert min(Counter((row["language"], row.get("half")) for row in rows).values()) >= 9
    for item in read_items(path, None, 0, 0):
        assert all(item.collection.text.count(answer) == 1 for answer in item.answers), item.identifier


def test_two_step_evidence_stands_in_several_places_of_a_context_that_training_leaves_out():
    for row, item in zip(read_rows(TWO_STEP), read_items(TWO_STEP, None, 0, 0), strict=True):
        assert len(set(item.facts)) >= 2, item.identifier
        assert len(row["context"]) > LONGEST_CONTEXT, item.identifier

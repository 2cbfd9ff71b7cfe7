"""The unseen set: documents of twenty kinds with questions, to be asked once, at the end, and never tuned on."""

import re
from collections import defaultdict
from pathlib import Path

import pytest

from specprefill_cli.lab.evaluation.datasets import read_items, read_rows
from specprefill_cli.lab.evaluation.metrics import contains_answer

FOLDER = Path(__file__).with_name("data") / "unseen"
QUESTIONS = FOLDER / "questions.jsonl"
LONGEST_QUOTE = 4


def normalised_words(text):
    return "".join(character if character.isalnum() else " " for character in text.lower()).split()


@pytest.fixture(scope="module")
def items():
    """The questions as `evaluate` reads them."""
    return read_items(QUESTIONS, None, 0, 0)


def test_every_document_has_five_questions_of_which_one_has_no_answer():
    by_document = defaultdict(list)
    for row in read_rows(QUESTIONS):
        (document,) = row["documents"]
        by_document[document].append(row)
        assert set(row) == {"id", "documents", "question", "answers", "pages"}
        assert row["pages"] == ([1] if row["answers"] else [])
    assert set(by_document) == {path.name for path in FOLDER.iterdir()} - {QUESTIONS.name}
    assert len(by_document) == 20
    assert {Path(name).suffix for name in by_document} == {".txt", ".md", ".csv"}
    for rows in by_document.values():
        assert len(rows) == 5
        assert sum(not row["answers"] for row in rows) == 1


def test_identifiers_and_questions_are_unique(items):
    assert len({item.identifier for item in items}) == len(items) == 100
    assert len({item.question for item in items}) == 100


def test_answers_stand_in_the_documents_as_they_are_read(items):
    for item in items:
        assert item.collection.warnings == []
        for answer in item.answers:
            # Not as a part of a word.
            assert re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", item.collection.text), (item.identifier, answer)


def test_questions_give_no_answer_away_and_do_not_quote(items):
    for item in items:
        question, document = normalised_words(item.question), normalised_words(item.collection.text)
        assert not any(contains_answer(item.question, [answer]) for answer in item.answers), item.identifier
        runs = {tuple(document[start : start + LONGEST_QUOTE + 1]) for start in range(len(document))}
        quoted = [question[at : at + LONGEST_QUOTE + 1] for at in range(len(question) - LONGEST_QUOTE)]
        assert not [run for run in quoted if tuple(run) in runs], item.identifier


def test_documents_are_about_two_pages_and_the_set_is_small(items):
    texts = {item.collection.text for item in items}
    assert len(texts) == 20
    assert all(4_000 < len(text) < 6_000 for text in texts)
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 200_000

"""The ordinary set: questions in other words than their documents', with the evidence of each; never trained on."""

from collections import Counter
from pathlib import Path

import pytest

from specprefill_cli.lab.evaluation.datasets import read_items, read_rows

FOLDER = Path(__file__).with_name("data") / "ordinary"
QUESTIONS = FOLDER / "questions.jsonl"


@pytest.fixture(scope="module")
def items():
    """The questions as `bench recall` reads them, which refuses evidence that does not stand in the documents."""
    return read_items(QUESTIONS, None, 0, 0)


def test_every_document_is_asked_about():
    rows = read_rows(QUESTIONS)
    assert {row["documents"][0] for row in rows} == {path.name for path in FOLDER.iterdir()} - {QUESTIONS.name}
    assert len({row["id"] for row in rows}) == len({row["question"] for row in rows}) == len(rows)
    kinds = Counter(row["kind"] for row in rows)
    assert kinds["single"] >= 150
    assert min(kinds["two-step"], kinds["none"]) >= 20


def test_an_answer_stands_in_the_evidence(items):
    for row, item in zip(read_rows(QUESTIONS), items, strict=True):
        assert bool(item.answers) == bool(item.facts) == (row["kind"] != "none"), item.identifier
        assert len(item.facts) >= 2 or row["kind"] != "two-step", item.identifier
        evidence = [item.collection.text[start:end] for start, end in item.facts]
        assert not item.answers or any(answer in text for answer in item.answers for text in evidence), item.identifier

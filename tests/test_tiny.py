"""The bundled trained pair on the sample documents: meaning, not mechanics.

The bounds lie a little below what this version of the pair was measured to do.
"""

import json
from pathlib import Path

import pytest

from specprefill_cli.answering.citations import occurrences
from specprefill_cli.lab.evaluation.datasets import read_items
from specprefill_cli.lab.evaluation.runner import Configuration, rows, run
from specprefill_cli.prefill.registry import SCORERS
from specprefill_cli.prefill.selection import chunk_scores, rank
from specprefill_cli.resources import packaged_folder
from specprefill_cli.settings import Settings

pytestmark = pytest.mark.slow

QUESTIONS = Path(packaged_folder("sample_docs") / "questions.jsonl")


@pytest.fixture(scope="module")
def answerable():
    return [item for item in read_items(QUESTIONS, None, 0, 0) if item.answers]


@pytest.fixture(scope="module")
def answered(tiny_session, answerable):
    wanted = [Configuration("full"), Configuration("select", 0.3, "question")]
    results = run(tiny_session, answerable, wanted, Settings(max_new_tokens=24), lambda *_: None).complete()
    return results, rows(results)


def share_of_chunks_before_the_answer(session, item, page_number, scorer):
    """How far down the ranking of chunks the one with the answer stands: 0 is first."""
    request = session.request(item.collection, item.question, Settings(scorer=scorer))
    (document,) = item.collection.documents
    page = next(page for page in document.pages if page.number == page_number)
    start = page.start + occurrences(item.answers[0], document.text[page.start : page.end])[0][0]
    chunk = int((request.prompt.offsets[:, 1] <= start).sum()) // request.chunk_size
    order = rank(chunk_scores(SCORERS[scorer].score(request).importance, request.chunk_size)).tolist()
    return order.index(chunk) / len(order)


def test_the_draft_finds_the_chunk_with_the_answer(tiny_session, answerable):
    pages = {row["id"]: row["pages"] for row in map(json.loads, QUESTIONS.read_text(encoding="utf-8").splitlines())}
    found = {
        scorer: sum(
            share_of_chunks_before_the_answer(tiny_session, item, pages[item.identifier][0], scorer) < 0.1
            for item in answerable
        )
        for scorer in ("question", "heads", "random")
    }
    assert found["question"] >= 20
    assert found["heads"] >= 20
    assert found["random"] <= 8


def test_the_target_answers_some_questions_about_facts_in_a_document(answered):
    _, (full, _) = answered
    assert full.right >= 14


def test_selection_keeps_the_right_answers(answered):
    _, (full, select) = answered
    assert select.right >= max(14, full.right - 2)
    assert select.kept_ratio < 0.32


def test_an_answer_that_stands_in_the_document_is_cited(answered):
    results, _ = answered
    cited = [answer.citations for item, answer in results[Configuration("full")] if answer.answer in item.answers]
    assert cited
    assert all(citations and citations[0].text for citations in cited)

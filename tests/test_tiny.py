"""Answer quality of the bundled pair on the sample documents.

The bounds are slightly below the measured results of the bundled pair.
"""

import json
from pathlib import Path

import pytest

from specprefill_cli.answering.places import occurrences
from specprefill_cli.files import packaged_folder
from specprefill_cli.lab.evaluation.datasets import read_items
from specprefill_cli.lab.evaluation.runner import Configuration, rows, run
from specprefill_cli.prefill.registry import SCORERS
from specprefill_cli.prefill.selection import chunk_scores, rank_chunks
from specprefill_cli.settings import Settings

pytestmark = pytest.mark.slow

QUESTIONS = Path(packaged_folder("sample_docs") / "questions.jsonl")


@pytest.fixture(scope="module")
def answerable():
    return [item for item in read_items(QUESTIONS, None, 0, 0) if item.answers]


@pytest.fixture(scope="module")
def answered(tiny_session, answerable):
    compared = [Configuration("full"), Configuration("select", 0.3, "question")]
    results = run(tiny_session, answerable, compared, Settings(max_new_tokens=24), lambda *_: None).results
    return results, rows(results)


def relative_rank_of_answer_chunk(session, item, page_number, scorer):
    """Return the rank of the chunk with the answer, as a fraction of all chunks: 0 is first."""
    request = session.request(item.collection, item.question, Settings(scorer=scorer))
    (document,) = item.collection.documents
    page = next(page for page in document.pages if page.number == page_number)
    start = page.start + occurrences(item.answers[0], document.text[page.start : page.end])[0][0]
    chunk = int((request.prompt.offsets[:, 1] <= start).sum()) // request.chunk_size
    order = rank_chunks(chunk_scores(SCORERS[scorer].score(request).importance, request.chunk_size)).tolist()
    return order.index(chunk) / len(order)


def test_draft_ranks_the_answer_chunk_in_the_top_tenth(tiny_session, answerable):
    pages = {row["id"]: row["pages"] for row in map(json.loads, QUESTIONS.read_text(encoding="utf-8").splitlines())}
    hits = {
        scorer: sum(
            relative_rank_of_answer_chunk(tiny_session, item, pages[item.identifier][0], scorer) < 0.1
            for item in answerable
        )
        for scorer in ("question", "heads", "random")
    }
    assert hits["question"] >= 20
    assert hits["heads"] >= 20
    assert hits["random"] <= 8


def test_target_answers_at_least_14_questions(answered):
    _, (full, _) = answered
    assert full["right"] >= 14


def test_select_answers_about_as_well_as_full(answered):
    _, (full, select) = answered
    assert select["right"] >= max(14, full["right"] - 2)
    assert select["kept_ratio"] < 0.32


def test_correct_answers_are_cited(answered):
    results, _ = answered
    cited = [answer.citations for item, answer in results[Configuration("full")] if answer.answer in item.answers]
    assert cited
    assert all(citations and citations[0].text for citations in cited)

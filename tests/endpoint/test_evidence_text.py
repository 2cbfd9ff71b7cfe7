"""What is sent is prose: whole sentences in order, below their document and page, with marks where text is left out."""

import re

import numpy as np
import pytest

from specprefill_cli.documents.document import Collection, Document, Page, join_pages, one_page_document
from specprefill_cli.endpoint.choosing import chat_messages, evidence_text, plan_from_passages, whole_sentences
from specprefill_cli.prefill.fates import Fate, Plan, Span, full_plan
from specprefill_cli.prompting import Template

FIRST = "The gate is green. It opens at nine. Visitors wait outside. The guard has the key."
SECOND = "Boats pay at the kiosk. Each night costs 12 pounds. Dogs are welcome."
TEXT, PAGES = join_pages([FIRST, SECOND])
REPORT = Document("report.pdf", TEXT, PAGES)
NOTES = one_page_document("notes\n.md", "The kiosk is closed on Mondays. It sells rope.")
BEFORE = 3


def words(collection):
    """Each word as a token: character ranges [n, 2]."""
    return np.array([match.span() for match in re.finditer(r"\S+", collection.text)])


def keeping(collection, *kept):
    """A plan that keeps the words with these numbers."""
    count = len(words(collection))
    spans = [
        Span(BEFORE + number, BEFORE + number + 1, Fate.RECOMPUTE if number in kept else Fate.DROP)
        for number in range(count)
    ]
    return Plan(BEFORE + count + 2, (BEFORE, BEFORE + count), tuple(spans))


def text_of(collection, plan):
    return evidence_text(collection, whole_sentences(collection, plan, words(collection)))


def number_of(collection, word):
    return collection.text.split().index(word)


OPENS, COSTS = "It opens at nine.", "report.pdf, page 2:\nEach night costs 12 pounds."


@pytest.mark.parametrize(
    ("documents", "kept", "paragraphs"),
    [
        ([REPORT], "opens 12", ["[...]", f"report.pdf, page 1:\n{OPENS}", "[...]", COSTS, "[...]"]),
        ([REPORT], "gate opens Each", [f"report.pdf, page 1:\nThe gate is green. {OPENS}", "[...]", COSTS, "[...]"]),
        ([REPORT], "key. 12", ["[...]", "report.pdf, page 1:\nThe guard has the key.", "[...]", COSTS, "[...]"]),
        ([NOTES, REPORT], "sells 12", ["[...]", "notes\\n.md:\nIt sells rope.", "[...]", COSTS, "[...]"]),
    ],
)
def test_kept_words_bring_whole_sentences_below_their_page(documents, kept, paragraphs):
    collection = Collection(tuple(documents))
    plan = keeping(collection, *(number_of(collection, word) for word in kept.split()))
    assert text_of(collection, plan).split("\n\n") == paragraphs


def test_a_dropped_document_is_marked_and_the_same_document_twice_is_kept_apart():
    collection = Collection((NOTES, NOTES))
    last = len(words(collection)) - 1
    assert text_of(collection, keeping(collection, last)) == "[...]\n\nnotes\\n.md:\nIt sells rope."


def test_everything_is_sent_without_marks():
    collection = Collection((REPORT, NOTES))
    count = len(words(collection))
    text = text_of(collection, full_plan(count, (0, count)))
    assert text == f"report.pdf, page 1:\n{FIRST}\n\nreport.pdf, page 2:\n{SECOND}\n\nnotes\\n.md:\n{NOTES.text}"


def test_nothing_kept_is_a_mark_and_no_text_is_nothing():
    assert text_of(Collection((NOTES,)), keeping(Collection((NOTES,)))) == "[...]"
    empty = Collection((Document("empty", "", (Page(1, 0, 0),)),))
    assert evidence_text(empty, []) == ""


def test_the_plan_counts_what_is_sent():
    collection = Collection((REPORT,))
    plan, offsets = keeping(collection, number_of(collection, "opens")), words(collection)
    sent = plan_from_passages(collection, whole_sentences(collection, plan, offsets), plan, offsets)
    kept = [
        collection.text.split()[span.start - BEFORE : span.end - BEFORE]
        for span in sent.spans
        if span.fate is Fate.RECOMPUTE
    ]
    assert kept == [["It", "opens", "at", "nine."]]
    assert sent.kept_tokens == BEFORE + 2 + 4
    assert [(span.start, span.end) for span in sent.spans] == [(BEFORE, 7), (7, 11), (11, BEFORE + len(offsets))]


def test_documents_and_question_are_data_and_the_question_is_last():
    template = Template("ask", None, "Be brief.", "\n$document\n\nQuestion: $question")
    assert chat_messages(template, "It costs $question.", " What is $document? ") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "It costs $question.\n\nQuestion: What is $document?"},
    ]
    plain = Template("tiny", "Answer.\n\n$document\n\nQuestion: $question\nAnswer:", None, None)
    assert chat_messages(plain, "Text.", "When?") == [
        {"role": "user", "content": "Answer.\n\nText.\n\nQuestion: When?\nAnswer:"}
    ]

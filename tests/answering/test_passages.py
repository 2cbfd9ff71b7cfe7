import re
from itertools import pairwise

import numpy as np
import pytest
import torch

from specprefill_cli.answering.passages import WORDS_PER_PASSAGE, best_passages, rank_sentences
from specprefill_cli.documents.document import Collection, Document, Page, one_page_document
from tests.helpers.samples import collection_of

FIRST = "The harbour opened in 1887. Boats came from all over. The pier was built of oak. Nobody fished there."
SECOND = "Lunch is at noon. The kitchen closes at two. Soup is free on Fridays."


@pytest.fixture
def collection():
    pages = (Page(1, 0, FIRST.index("The pier") - 1), Page(2, FIRST.index("The pier"), len(FIRST)))
    first = Document("harbour.pdf", FIRST, pages)
    return Collection((first, one_page_document("lunch.txt", SECOND)))


def word_offsets(text):
    return np.array([match.span() for match in re.finditer(r"\S+", text)])


def passages(collection, question, important="", count=3, quotes=()):
    offsets = word_offsets(collection.text)
    importance = torch.full((len(offsets),), 1e-3)
    if important:
        place = collection.text.index(important)
        importance[(offsets[:, 0] >= place) & (offsets[:, 1] <= place + len(important))] = 1.0
    sentences = rank_sentences(collection, question, offsets, importance if important else None)
    return best_passages(sentences, count, quotes)


def test_importance_finds_a_sentence_that_shares_no_word_with_the_question(collection):
    best = passages(collection, "Which timber?", important="The pier was built of oak.", count=1)[0]
    assert "oak" in best.text
    assert (best.document, best.page, best.number) == ("harbour.pdf", 2, 0)
    assert best.text == FIRST[best.start : best.end]


def test_words_of_the_question_find_it_where_nothing_was_scored(collection):
    best = passages(collection, "When does the kitchen close?", count=1)[0]
    assert (best.document, best.number) == ("lunch.txt", 1)
    assert best.text == SECOND[best.start : best.end]
    assert "kitchen" in best.text


def test_a_quoted_sentence_comes_first_unless_it_is_doubtful(collection):
    for quote, first in (("Soup", "Soup"), ("Boats", "kitchen")):
        best = passages(collection, "Does the kitchen close on Fridays?", quotes=[collection.text.index(quote)])
        assert first in best[0].text


def test_passages_are_whole_sentences_of_one_document_without_overlap(collection):
    best = passages(collection, "the harbour lunch", count=5)
    for passage in best:
        assert passage.text[0].isupper()
        assert passage.text.endswith(".")
        assert 0 <= passage.importance <= 1
    ranges = sorted((passage.number, passage.start, passage.end) for passage in best)
    assert all(a[0] < b[0] or a[2] <= b[1] for a, b in pairwise(ranges))
    assert len(best) <= 5


@pytest.mark.parametrize(
    ("question", "expected"), [("When?", "since 1887"), ("How much is it?", "for 42"), ("Who?", "by Holt")]
)
def test_a_sentence_with_what_the_question_asks_for_gains(question, expected):
    text = f"The mill is known all round. Cats sleep. The mill is known {expected}. Cats sleep. The mill is known all round."
    document = collection_of(text)
    sentences = rank_sentences(document, question + " The mill", word_offsets(text), None)
    best = sentences.ranges[sentences.relevance.argmax()]
    assert expected in text[slice(*best)]


def test_a_heading_brings_the_sentence_behind_it():
    document = one_page_document("a.md", "Notice period\n\nIt is a month. Holidays are long.")
    assert passages(Collection((document,)), "notice", count=1)[0].text.startswith("Notice period\n\nIt is a month.")


def test_passages_take_in_neighbours_while_there_is_room():
    text = " ".join(f"Sentence {number} has exactly these seven words." for number in range(40))
    text = text.replace("20 has", "20 names the treasurer and has").replace("30 has", "30 names the treasurer and has")
    document = collection_of(text)
    best = passages(document, "Who is the treasurer?")
    for passage, number in zip(best[:2], (20, 30), strict=True):
        assert f"Sentence {number} " in passage.text
        assert 2 <= passage.text.count("Sentence") <= 4
    assert sum(len(passage.text.split()) for passage in best) <= 3 * WORDS_PER_PASSAGE
    single = passages(document, "Who is the treasurer?", count=1)[0]
    assert len(single.text.split()) <= WORDS_PER_PASSAGE


def test_documents_without_text_have_no_passages():
    empty = collection_of("")
    assert best_passages(rank_sentences(empty, "q", np.zeros((0, 2)), torch.zeros(0)), 3) == []


def test_answer_has_passages_and_log_probability(tiny_session, collection):
    answer = tiny_session.ask(collection, "When did the harbour open?").finished()
    assert any("1887" in passage.text for passage in answer.passages)
    assert answer.log_probability < 0
    off = tiny_session.ask(collection, "When did it open?", tiny_session.settings.varied(passages="off")).finished()
    assert off.passages == []

"""Training rows: the product's prompts, and answers that occur in the shown document."""

import random

import numpy as np
import pytest

from specprefill_cli.prompting import encode_prompt, load_template
from specprefill_cli.training.corpus import locate
from specprefill_cli.training.positions import MAX_GAP_BEFORE_SUFFIX, widen_gaps
from specprefill_cli.training.rows import CONTEXT, RowMaker, prompt_format
from specprefill_cli.training.synthesis import NOT_FOUND, FactBook, fact_block
from tests.helpers.written_questions import GROUPS, PASSAGES, PLACES


@pytest.fixture
def maker(tokenizer):
    return RowMaker(tokenizer.backend_tokenizer, prompt_format(), PASSAGES, GROUPS, seed=3)


def questions_of(row, maker):
    """The questions of a row: (first token of the template, tokens of the question, tokens of the answer)."""
    ends = [place + 1 for place in row.answers if row.tokens[place + 1] == maker.writer.end]
    questions = []
    for place in row.answers:
        if place - 1 in row.answers:
            continue
        end = next(end for end in ends if end > place)
        before = maker.writer.before
        start = max(first for first in range(place) if row.tokens[first : first + len(before)] == before)
        question = row.tokens[start + len(before) : place + 1 - len(maker.writer.after)]
        questions.append((start, question, row.tokens[place + 1 : end]))
    return questions


@pytest.mark.parametrize("length", [512, 1_024, pytest.param(4_096, marks=pytest.mark.slow)])
def test_rows_follow_the_product_prompt_and_answers_stand_in_the_document(maker, tokenizer, length):
    template, seen, absent = load_template("tiny"), 0, 0
    for _ in range(12):
        row = maker.document_row(length, 0.5)
        questions = questions_of(row, maker)
        assert questions
        first = questions[0][0]
        document = tokenizer.decode(row.tokens[len(maker.writer.prefix) : first])
        for start, question, answer in questions:
            text = tokenizer.decode(question).strip()
            prompt = encode_prompt(template, "x", text, tokenizer)
            assert row.tokens[: len(maker.writer.prefix)] == prompt.tokens[: prompt.document[0]].tolist()
            tail = prompt.tokens[prompt.document[1] :].tolist()
            assert row.tokens[start : start + len(tail)] == tail
            answer_text = tokenizer.decode(answer).strip()
            seen += 1
            absent += answer_text == NOT_FOUND
            assert answer_text == NOT_FOUND or answer_text in document
    assert seen > 40
    assert 0 < absent < 0.25 * seen


def test_gaps_may_be_wide_and_kept_spans_stay_together():
    rng = random.Random(4)
    kept = np.concatenate([np.arange(10, 74), np.arange(138, 170), np.arange(400, 432)])
    longest = 0
    for _ in range(200):
        moved, stretch = widen_gaps(kept, 9_000, rng)
        steps, before = np.diff(moved), np.diff(kept)
        assert (steps[before == 1] == 1).all()
        assert (steps >= before).all()
        assert moved[-1] - kept[-1] <= stretch <= 9_000
        longest = max(longest, stretch)
    assert longest > 5_000


def test_positions_fit_the_context_and_questions_follow_the_document(maker):
    tails = []
    for _ in range(60):
        row = maker.document_row(512, 0.5)
        positions = row.positions
        assert (np.diff(positions) > 0).all()
        assert positions[-1] < CONTEXT
        # A row may end before its first question.
        for start, _, _ in questions_of(row, maker)[:1]:
            tails.append(int(positions[start] - positions[start - 1]))
    assert len(tails) > 50
    assert max(tails) > MAX_GAP_BEFORE_SUFFIX
    assert min(tails) == 1


def test_questions_of_neighbours_are_renamed_with_the_document(maker):
    for _ in range(30):
        row = maker.document_row(1_024, 1.0)
        text = maker.tokenizer.decode([token for token in row.tokens if token != maker.pad])
        names = {name for name in PLACES if f"harbour of {name}" in text}
        others = text.count("harbour of ")
        assert others
        # The questions use only the names in the text, old or new.
        for _, question, _ in questions_of(row, maker):
            words = maker.tokenizer.decode(question)
            assert not any(name in words for name in set(PLACES) - names)


def test_a_subject_has_a_single_fact_in_a_group_and_withheld_facts_are_marked():
    book, rng = FactBook(), random.Random(4)
    group = [relation for relation in book.relations if relation.get("group") == "meeting"]
    assert len(group) == 3
    stated: set = set()
    blocks = [block for relation in group for _ in range(60) for block in book.statements(relation, 3, rng, stated)]
    facts = [block.questions[0].fact for block in blocks]
    assert len(facts) == len(set(facts))
    blocks = [fact_block(book, "handbook", "A plain sentence.", 12, rng, set()) for _ in range(40)]
    absent = [question for block in blocks for question in block.questions if question.answer == NOT_FOUND]
    assert absent
    assert all(question.fact is not None and question.start == -1 for question in absent)


def test_locates_the_answer_near_words_of_the_question():
    context = (
        "In 1904 the mill burnt down. " + "It rained a lot that year. " * 9 + "The bridge was opened in 1904 by Ana."
    )
    assert locate(context, "When was the bridge opened?", ["1904"]) == ("1904", context.rindex("1904"))
    assert locate(context, "When did the mill burn down?", ["1904"]) == ("1904", 3)
    assert locate("No dogs.", "Are dogs allowed?", ["no", "No"]) is None

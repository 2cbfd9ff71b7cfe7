"""Renaming: names and numbers change alike in text, question and answer; and questions that the text does not answer."""

import random

from specprefill_cli.training.absent import edited
from specprefill_cli.training.renaming import Names, names_in, rename_blocks
from specprefill_cli.training.synthesis import Block, Question

TEXT = "In 1904 the bridge was opened by Ana Rossi. It cost 250 crowns, and later Rossi moved to Lisbon in March 1911."
BLOCK = Block(
    TEXT,
    tuple(
        Question(text, answer, TEXT.index(answer))
        for text, answer in (
            ("Who opened the bridge in 1904?", "Ana Rossi"),
            ("What did it cost?", "250 crowns"),
            ("When?", "March 1911"),
        )
    ),
)


def rename(block, *pool, seed=1, ordinary=()):
    (result,) = rename_blocks([block], Names(pool, frozenset(ordinary)), random.Random(seed))
    return result


def test_answers_still_stand_at_their_positions():
    for seed in range(50):
        block = rename(BLOCK, "Byron", "Kalmar", "Oslo", seed=seed)
        for question in block.questions:
            assert block.text[question.start : question.start + len(question.answer)] == question.answer


def test_replaces_names_and_numbers_alike_but_not_months():
    block = rename(BLOCK, "Byron")
    assert "Rossi" not in block.text
    assert "Lisbon" not in block.text
    assert block.questions[0].answer == "Byron Byron"
    year = block.text.split()[1]
    assert year != "1904"
    assert block.questions[0].text == f"Who opened the bridge in {year}?"
    assert block.questions[2].answer.startswith("March ")
    # The first word of a sentence is not taken for a name.
    assert block.text.startswith("In ")


def test_different_names_stay_different():
    text = "In May the bridge of Ana was sold to Bo by Cy, and the mill of Dora to Eve."
    for seed in range(30):
        block = rename(Block(text), *(f"Name{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"), seed=seed)
        drawn = [word.strip(".,") for word in block.text.split() if word.startswith("Name")]
        assert len(drawn) == len(set(drawn)) > 2


def test_names_are_words_from_inside_sentences_that_are_never_in_lower_case():
    names = names_in(["Rain fell on Oslo and on Bergen.", "Nobody came to The Hague.", "the rain"])
    assert names.pool == ["Oslo", "Bergen", "Hague"]
    assert {"rain", "the", "came"} <= names.ordinary
    text = "The mill closed. It was sold, the papers say, in The Times, and, When asked, Byron wrote to Rossi."
    block = Block(text, (Question("When was the mill of Rossi sold?", "Byron", text.index("Byron")),))
    result = rename(block, "Kalmar", "Oslo", ordinary={"when"})
    assert result.text.startswith("The mill closed. It was sold, the papers say, in The ")
    assert "When asked" in result.text
    (question,) = result.questions
    assert question.text.startswith("When was the mill of ")
    assert "Rossi" not in question.text


def test_an_edited_question_asks_for_what_the_text_does_not_state():
    rng, question = random.Random(0), "When did Ana Rossi open the first of 250 bridges?"
    questions = {edited(question, TEXT, ["Ines Holt"], rng) for _ in range(99)}
    assert {"When did Ines Holt open the first of 250 bridges?", question.replace("first", "last")} < questions
    assert question.replace("did", "did not") in questions
    assert question not in questions
    assert edited("Why?", TEXT, ["Ines Holt"], rng) is None

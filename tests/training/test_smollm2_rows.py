"""Training rows of the adapter: the product's prompt, the draft's chunks, and answers in the shown text."""

import random

import pytest
import torch

from specprefill_cli.training.blocks import BlockMaker, Recipe
from specprefill_cli.training.questions import PromptFormat
from specprefill_cli.training.renaming import names_in
from specprefill_cli.training.smollm2 import rows
from specprefill_cli.training.smollm2.rows import ChatRowMaker, Mixture
from specprefill_cli.training.synthesis import NOT_FOUND, Block, FactBook, Question
from specprefill_cli.training.topics import Material
from tests.helpers.written_questions import GROUPS, PASSAGES, PLACES

TEMPLATE = PromptFormat("System: answer.\nUser: ", "\n\nQuestion:", "\nAssistant: ")


@pytest.fixture
def make_maker(tokenizer, monkeypatch):
    # The end of the bundled pair's texts, in place of SmolLM2's.
    monkeypatch.setattr(rows, "END", tokenizer.eos_token)

    def rank_chunks(text, question, offsets):
        count = -(-len(offsets) // 32)
        return random.Random(question).sample(range(count), count)

    def build(everyday=(), **mixture):
        material = Material(PASSAGES, GROUPS, FactBook())
        blocks = BlockMaker(material, names_in(PASSAGES), Recipe(), random.Random(4))
        return ChatRowMaker(tokenizer.backend_tokenizer, TEMPLATE, blocks, Mixture(**mixture), rank_chunks, everyday)

    return build


def answer_texts(row, tokenizer):
    """The answer to each question of a row, without the end token."""
    numbers = row.segments[row.answers]
    return [tokenizer.decode(row.targets[numbers == number].tolist()[:-1]) for number in numbers.unique()]


@pytest.mark.parametrize("thinned", [0.0, 1.0])
def test_answers_are_shown_or_not_found(make_maker, tokenizer, thinned):
    maker, absent, total = make_maker(thinned=thinned), 0, 0
    for _ in range(40):
        row = maker.row()
        shown = tokenizer.decode(row.tokens[row.segments == 0].tolist())
        for answer in answer_texts(row, tokenizer):
            total += 1
            absent += answer == NOT_FOUND
            assert answer == NOT_FOUND or answer in shown or thinned
    assert 0.03 < absent / total < 0.45


def test_questions_follow_the_document_and_share_its_end(make_maker):
    maker = make_maker(thinned=0.0)
    for _ in range(20):
        row = maker.row()
        end = int((row.segments == 0).sum())
        for number in row.segments.unique()[1:]:
            positions = row.positions[row.segments == number]
            assert positions.tolist() == list(range(end, end + len(positions)))


def test_original_positions_keep_the_gaps_and_compact_ones_shorten_them(make_maker):
    for compact, longest in ((0.0, None), (1.0, 2.0)):
        maker = make_maker(thinned=1.0, compact=compact, chunks=(3, 5), sentences=0.0)
        for _ in range(10):
            row = maker.row()
            shared = row.segments == 0
            prefix = len(maker.prefix)
            positions = row.positions[shared]
            assert (positions.diff() > 0).all()
            assert positions[:prefix].tolist() == list(range(prefix))
            if longest is None:
                assert ((positions[prefix:] - prefix) % 32 == torch.arange(len(positions) - prefix) % 32).all()
            else:
                assert int(positions[-1]) < longest * int(shared.sum())


def test_rows_of_written_documents_have_answerable_and_unanswerable_questions(make_maker, tokenizer):
    text = "".join(f"The stall of {place} sells {number} kinds of rope. " for number, place in enumerate(PLACES, 40))
    questions = [
        Question(f"How many sorts are sold by {place}?", str(number), text.index(f"sells {number}") + len("sells "))
        for number, place in enumerate(PLACES, 40)
    ]
    document = Block(text, (*questions, Question("Who owns the stalls?", NOT_FOUND, -1)))
    maker = make_maker(everyday=[document], everyday_share=1.0, absent=0.4, chunks=(1, 3))
    answers = [answer for _ in range(20) for answer in answer_texts(maker.row(), tokenizer)]
    assert NOT_FOUND in answers
    assert set(answers) - {NOT_FOUND} <= {question.answer for question in questions}

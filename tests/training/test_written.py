"""Written documents with questions, and the encoder's training on them."""

import random
from dataclasses import replace

import pytest
import torch

from specprefill_cli.models.encoder_files import load_encoder
from specprefill_cli.training.corpus import written_documents
from specprefill_cli.training.encoder_tuning import (
    loss_of,
    neighbouring_contexts,
    question_probabilities,
    recalls,
    some_questions,
)
from specprefill_cli.training.synthesis import NOT_FOUND, Block, Question
from tests.helpers.written_questions import GROUPS

TEXT = (
    "The club meets in the old boathouse on Fridays. " * 12
    + "Members return their keys to Odile Marchand. "
    + "Boats are washed after each outing and dried on the racks. " * 12
)
QUESTION = Question("Who gets the keys back?", "Odile Marchand", TEXT.index("Odile"))


def test_answers_start_where_the_file_says():
    documents = written_documents()
    assert len(documents) >= 60
    for document in documents:
        for question in document.questions:
            if question.start < 0:
                assert question.answer == NOT_FOUND
            else:
                assert document.text[question.start :].startswith(question.answer)


def test_the_chunk_with_the_answer_is_marked_and_ranked_first(processor_dtype):
    document = Block(TEXT, (QUESTION,))
    probabilities, answers = question_probabilities(load_encoder("cpu"), document, 16)
    assert answers.sum() in (1, 2)
    assert probabilities.sum().item() == pytest.approx(1.0, abs=0.05)
    assert recalls(load_encoder("cpu"), [document]) == [100.0, 100.0]


def test_a_step_down_the_gradient_lowers_the_loss(processor_dtype):
    loaded = load_encoder("cpu")
    names = [name for name in loaded.weights if not name.startswith("words")]
    weights = {name: loaded.weights[name].float().clone().requires_grad_() for name in names}
    encoder = replace(loaded, weights=loaded.weights | weights)
    # A question that the text does not answer: the bundled weights leave much to learn.
    document = Block(TEXT, (replace(QUESTION, text="What happens to a boat when it is wet?"),))
    loss = loss_of(encoder, document, 16)
    loss.backward()
    with torch.no_grad():
        for tensor in weights.values():
            tensor -= 1e-3 * tensor.grad
        assert loss_of(encoder, document, 16) < loss


def test_documents_of_neighbouring_contexts_keep_their_answers_in_place():
    document = neighbouring_contexts(GROUPS, random.Random(2))
    assert document.questions
    for question in some_questions(document, random.Random(1)).questions:
        assert document.text[question.start :].startswith(question.answer)

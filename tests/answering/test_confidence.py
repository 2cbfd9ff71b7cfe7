"""Confidence of an answer, whether the documents state one, and what `--not-found` makes of it."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from specprefill_cli.answering.confidence import (
    ANSWERABLE,
    DENIED,
    DOUBTFUL,
    FILE,
    ConfidenceModel,
    estimate,
    load_answerable,
    load_confidence,
)
from specprefill_cli.documents.document import one_page_document
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.files import BUNDLED_FOLDER
from specprefill_cli.lab.calibration.answers import logistic_regression
from specprefill_cli.models.sources.tokenizers import encode_text
from specprefill_cli.prefill.bm25 import absent_names
from specprefill_cli.record import LIKELY, NOT_FOUND
from specprefill_cli.settings import Settings
from tests.helpers.architectures import VOCABULARY
from tests.helpers.samples import collection_of
from tests.helpers.sessions import GATES

TEXT = "The harbour opened in 1887. Boats came from all over the coast. The mayor of Skerrin is Ada Holt."


def test_regression_recovers_the_weights_that_made_the_data():
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(20_000, 2)) * [1.0, 5.0] + [0.0, 3.0]
    right = generator.random(20_000) < 1 / (1 + np.exp(-(0.5 + 1.5 * rows[:, 0] - 0.2 * rows[:, 1])))
    intercept, weights = logistic_regression(rows, right.astype(float))
    assert [intercept, *weights] == pytest.approx([0.5, 1.5, -0.2], abs=0.2)


def test_surer_answers_are_likelier_right(tiny_session):
    model = tiny_session.confidence
    unsure, sure = ({"mean": -1.5, "lowest": -3.0, "source": -0.3}, {"mean": 0.0, "lowest": 0.0, "source": 0.0})
    assert model.probability(unsure) < 0.3 < LIKELY < model.probability(sure)


def test_the_bundled_pair_states_its_confidence(tiny_session):
    documents = [one_page_document("a.txt", TEXT)]
    assert 0 < tiny_session.ask(documents, "When did the harbour open?").finished().confidence < 1


def test_confidence_of_other_weights_is_not_used(tmp_path, random_pair):
    (tmp_path / FILE).write_text((BUNDLED_FOLDER / FILE).read_text())
    assert load_confidence(tmp_path / FILE, random_pair.loaded_target) is None
    assert load_answerable(tmp_path / "nothing", random_pair.loaded_target) is None


def test_a_damaged_file_is_named(tmp_path, random_pair):
    (tmp_path / FILE).write_text(json.dumps({"schema": 1, "weights": {}}))
    with pytest.raises(SpecprefillError, match=r"confidence\.json.*calibrate --confidence"):
        load_confidence(tmp_path / FILE, random_pair.loaded_target)


@pytest.mark.parametrize(("question", "share"), [
    ("Who lives by the mill in Kalmar?", 0.0), ("Who lives by the mill in Ribe?", 1.0),
    ("Did Kalmar or Ribe open in 1887?", 1 / 3), ("We visit Ribe on 3 July. When does the mill open?", 0.0),
])  # fmt: skip
def test_names_of_the_question_that_the_text_lacks(question, share):
    text = "The keeper of Kalmar lives by the mill, which opened in 1887."
    assert absent_names(question, text, np.array([0])) == pytest.approx(share)


def ask(session, question="When does the gate open?", **settings):
    return session.ask(collection_of(GATES * 6), question, Settings(max_new_tokens=5, **settings))


def test_evidence_is_the_margin_of_not_found_and_the_names_that_the_text_lacks(random_session):
    stream = ask(random_session, "When does the gate open, Kalmar or mill?")
    assert stream.evidence["names"] == 1
    token = encode_text(random_session.pair.target.tokenizer, f" {NOT_FOUND}")[0][0]
    for likely, margin in ((0, -6.0), (token, 6.0)):
        logits = torch.zeros(VOCABULARY).index_fill(0, torch.tensor([likely]), 50.0)
        stream.prefilled = replace(stream.prefilled, logits=logits)
        assert stream.evidence["margin"] == margin


def test_a_doubtful_signal_makes_an_answer_less_likely():
    assert estimate(ANSWERABLE, {"names": 0.0, "margin": -4.0}) > DOUBTFUL > DENIED
    assert estimate(ANSWERABLE, {"names": 0.0, "margin": 4.0}) < DENIED
    assert estimate(ANSWERABLE, {"names": 1.0, "margin": -2.0}) < DENIED
    assert estimate(ANSWERABLE, {"names": 1.0}) < DENIED < DOUBTFUL < estimate(ANSWERABLE, {"names": 0.0})


@pytest.mark.parametrize(("not_found", "intercept", "answerable", "replaced"), [
    ("never", -9.0, None, False), ("warn", -9.0, False, False), ("strict", -9.0, False, True),
    ("strict", 9.0, True, False),
])  # fmt: skip
def test_only_strict_replaces_a_doubtful_answer(
    random_session, monkeypatch, not_found, intercept, answerable, replaced
):
    models = (ConfidenceModel(intercept=intercept, weights={}),)
    monkeypatch.setattr("specprefill_cli.answering.text_stream.ANSWERABLE", models)
    plain = ask(random_session, not_found="never").finished().answer
    stream = ask(random_session, not_found=not_found)
    pieces = list(stream)
    record = stream.result()
    if replaced:
        assert ask(random_session, not_found=not_found, mode="select", confirm=True).finished().confirmed is not None
    assert record.answerable is answerable
    assert record.answer == "".join(pieces).strip() == (NOT_FOUND if replaced else plain)
    assert (record.generated_tokens == 0) == replaced

import json

import numpy as np
import pytest

from specprefill_cli.answering.confidence import FILE, load_confidence
from specprefill_cli.documents.document import one_page_document
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.lab.calibration.confidence import logistic_regression
from specprefill_cli.prefill.bm25 import absent_names
from specprefill_cli.record import LIKELY
from specprefill_cli.resources import BUNDLED_FOLDER

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
    assert load_confidence(tmp_path, random_pair.loaded_target) is None
    assert load_confidence(tmp_path / "nothing", random_pair.loaded_target) is None


def test_a_damaged_file_is_named(tmp_path, random_pair):
    (tmp_path / FILE).write_text(json.dumps({"schema": 1, "weights": {}}))
    with pytest.raises(SpecprefillError, match=r"confidence\.json.*calibrate --confidence"):
        load_confidence(tmp_path, random_pair.loaded_target)


@pytest.mark.parametrize(
    ("question", "share"),
    [
        ("Who lives by the mill in Kalmar?", 0.0),
        ("Who lives by the mill in Ribe?", 1.0),
        ("Did Kalmar or Ribe open in 1887?", 1 / 3),
        ("We visit Ribe on 3 July. When does the mill open?", 0.0),
    ],
)
def test_names_of_the_question_that_the_text_lacks(question, share):
    text = "The keeper of Kalmar lives by the mill, which opened in 1887."
    assert absent_names(question, text, np.array([0])) == pytest.approx(share)

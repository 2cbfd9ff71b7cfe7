"""Whether the documents state an answer, and what `--not-found` makes of it."""

from dataclasses import replace

import pytest
import torch

from specprefill_cli.answering.confidence import ANSWERABLE, DENIED, DOUBTFUL, ConfidenceModel, estimate
from specprefill_cli.models.sources.tokenizers import encode_text
from specprefill_cli.record import NOT_FOUND
from specprefill_cli.settings import Settings
from tests.helpers.architectures import VOCABULARY
from tests.helpers.samples import collection_of
from tests.helpers.sessions import GATES


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


@pytest.mark.parametrize(
    ("not_found", "intercept", "answerable", "replaced"),
    [
        ("never", -9.0, None, False),
        ("warn", -9.0, False, False),
        ("strict", -9.0, False, True),
        ("strict", 9.0, True, False),
    ],
)
def test_only_strict_replaces_a_doubtful_answer(
    random_session, monkeypatch, not_found, intercept, answerable, replaced
):
    models = (ConfidenceModel(intercept=intercept, weights={}),)
    monkeypatch.setattr("specprefill_cli.answering.text_stream.ANSWERABLE", models)
    plain = ask(random_session, not_found="never").finished().answer
    stream = ask(random_session, not_found=not_found)
    pieces = list(stream)
    record = stream.result()
    assert record.answerable is answerable
    assert record.answer == "".join(pieces).strip() == (NOT_FOUND if replaced else plain)
    assert (record.generated_tokens == 0) == replaced

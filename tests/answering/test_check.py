"""The check behind an answer, and what `--not-found` makes of it."""

import pytest
import torch

from specprefill_cli.answering.check import CHECK, NO, YES
from specprefill_cli.answering.confidence import ConfidenceModel
from specprefill_cli.models.adapter import prefill
from specprefill_cli.models.tokenizers import encode_text
from specprefill_cli.record import NOT_FOUND
from specprefill_cli.settings import Settings
from tests.helpers.samples import collection_of
from tests.helpers.sessions import GATES

QUESTION = "When does the gate open?"


def ask(session, **settings):
    stream = session.ask(collection_of(GATES * 6), QUESTION, Settings(max_new_tokens=5, **settings))
    stream.checks = True
    return stream


@pytest.mark.parametrize("mode", ["full", "select"])
def test_the_check_reads_what_a_prefill_of_its_own_would_read(random_session, mode):
    stream = ask(random_session, mode=mode, keep=0.5, positions="original")
    stream.finished()
    prompt, target = stream.request.prompt, stream.request.target
    kept = stream.prefilled.plan.kept_positions()
    kept = kept[kept < prompt.question[1]]
    check = torch.tensor(encode_text(target.tokenizer, CHECK)[0])
    tokens = torch.cat([prompt.tokens[kept], check, prompt.tokens[prompt.question[1] :]])
    positions = torch.cat([kept, torch.arange(len(tokens) - len(kept)) + prompt.question[1]])
    logits = prefill(target.model, tokens, positions, 1024)[0]
    yes, no = ([encode_text(target.tokenizer, word)[0][0] for word in words] for words in (YES, NO))
    assert stream.denial == pytest.approx(float(logits[no].logsumexp(0) - logits[yes].logsumexp(0)), abs=1e-4)


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
    models = (ConfidenceModel(intercept=intercept, weights={"denial": 0.0}),)
    monkeypatch.setattr("specprefill_cli.answering.stream.ANSWERABLE", models)
    plain = ask(random_session, not_found="never").finished().answer
    stream = ask(random_session, not_found=not_found)
    pieces = list(stream)
    record = stream.result()
    assert record.answerable is answerable
    assert record.answer == "".join(pieces).strip() == (NOT_FOUND if replaced else plain)
    assert (stream.denial is None) == (not_found == "never")

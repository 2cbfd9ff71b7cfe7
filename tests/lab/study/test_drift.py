"""Drift over a forced continuation."""

import pytest
import torch

from specprefill_cli.lab.study.drift import Drift, continuation, drift, drift_row, kl_rows
from specprefill_cli.models.adapter import prefill, run
from specprefill_cli.prefill.registry import MODES
from specprefill_cli.settings import Settings
from tests.lab.study.test_equal_cost import item


def test_full_prefill_does_not_drift_from_itself_and_a_shorter_one_does(random_session):
    settings = Settings(scorer="question", look_ahead=1)
    request = random_session.request(item().collection, "When?", settings)
    model, tokens = request.target.model, request.prompt.tokens
    result = MODES["full"].prefill(request)
    first_choice = frozenset({int(result.logits.argmax())})
    for stop_tokens, answer_tokens in ((frozenset({0}), 12), (first_choice, 1)):
        reference = continuation(model, result.state, result.logits, stop_tokens, count=12)
        assert not set(reference.tokens.tolist()) & stop_tokens
        assert reference.answer_tokens == answer_tokens
        same = drift(model, result.state, result.logits, reference)
        assert (same.parted, same.answer_changed) == (None, False)
        assert max(same.kl) < 1e-4
        assert result.state.length == len(tokens)
    kept = torch.cat([torch.arange(8), torch.arange(len(tokens) - 20, len(tokens))])
    logits, state = prefill(model, tokens[kept], kept, 1_024)
    other = drift(model, state, logits, reference)
    assert state.length == len(kept)
    assert len(other.kl) == 12
    # By hand: the second token's distributions, behind the first forced token at the position after the prompt.
    place = torch.tensor([len(tokens)])
    rows = [run(model, reference.tokens[:1], place, part) for part in (result.state, state)]
    assert other.kl[1] == pytest.approx(float(kl_rows(*(row.log_softmax(-1) for row in rows))), rel=1e-2, abs=1e-5)
    assert other.kl[1] > 10 * max(same.kl)


def test_answers_that_part_are_counted_by_length():
    drifts = [Drift(kl=(0.5, 1.5), parted=parted, answer_changed=parted == 0) for parted in (0, 3, 15, None)]
    row = drift_row("x", drifts)
    assert row["parted_after"] == {"1": 0.25, "4": 0.5, "16": 0.75, "64": 0.75}
    assert row["kl_by_token"] == [0.5, 1.5]
    assert (row["kl_mean"], row["answer_changed"]) == (1.0, 0.25)

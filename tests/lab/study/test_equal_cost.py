"""Answers at equal time to first token: the choice of keep, the formulas, and the controls."""

import pytest
import torch

from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.lab.evaluation.runner import Configuration
from specprefill_cli.lab.evaluation.statistics import TOO_FEW
from specprefill_cli.lab.session import answer_with, draft_session
from specprefill_cli.lab.study import equal_cost as equal_cost_module
from specprefill_cli.lab.study.controls import mapped_kv, other_document, splice_document
from specprefill_cli.lab.study.equal_cost import (
    DRAFT_KV,
    FULL,
    KEEPS,
    WRONG,
    WRONG_ACCEPTED,
    ZEROS_ACCEPTED,
    Tally,
    conditions,
    cost_rows,
    gap_recovered,
    nearest_keep,
    paired_difference,
    reference_settings,
    tune,
)
from specprefill_cli.lab.study.measurements import MAPPED_ONLY, REST_DROPPED
from specprefill_cli.record import Fate
from specprefill_cli.settings import Settings
from tests.helpers.samples import collection_of

TEXT = "The north gate opens at nine. Tickets cost four euros. The keeper lives by the old mill near the river. " * 8
SETTINGS = reference_settings(Settings(scorer="question", look_ahead=1))
KEPT = {"select": 0.4, "hybrid": 0.3}


def item(number=0, text=TEXT):
    return Item(str(number), f"When, number {number}?", ("nine",), collection_of(text), (0, 10))


@pytest.mark.parametrize("seconds", [0.0, 0.31, 0.62, 1.2, 9.0])
def test_bisection_finds_the_keep_ratio_with_the_nearest_time(seconds):
    tried = []

    def measure(keep):
        tried.append(keep)
        return 0.2 + keep

    keep, measured = nearest_keep(seconds, measure)
    assert keep == min(KEEPS, key=lambda candidate: abs(0.2 + candidate - seconds))
    assert measured == pytest.approx(0.2 + keep)
    assert len(tried) == len(set(tried)) <= 6


def test_each_mode_is_tuned_to_the_reference_time(monkeypatch):
    """With a stub clock: draft KV takes one second, and `hybrid` half a second more than `select`."""
    costs = {"draft-kv": lambda _: 1.0, "select": lambda keep: 2 * keep, "hybrid": lambda keep: 0.5 + 2 * keep}
    calls = []

    def timer(_session, items, settings):
        calls.append((settings.mode, len(items)))
        return costs[settings.mode](settings.keep)

    monkeypatch.setattr(equal_cost_module, "median_ttft", timer)
    select, hybrid = tune(None, [item(n) for n in range(9)], SETTINGS, ("select", "hybrid"), lambda _: None)
    assert (select["keep"], hybrid["keep"]) == (0.5, 0.25)
    assert select["pilot_ttft_seconds"] == select["target_ttft_seconds"] == 1.0
    assert calls[0] == ("draft-kv", 9)


def tally(scores, seconds, **options):
    return Tally(Configuration(DRAFT_KV), list(scores), [seconds] * len(scores), [0.1] * len(scores), [True], **options)


def test_rows_report_equal_ttft_and_recovered_gap():
    tallies = {
        FULL: tally([100, 100], 4.0),
        "draft alone": tally([0, 50], 1.0),
        DRAFT_KV: tally([50, 100], 2.0),
        "a": tally([0, 100], 2.09),
        "b": tally([0, 100], 1.89),
    }
    rows = {row["name"]: row for row in cost_rows(tallies)}
    assert [rows[name]["equal_ttft"] for name in (FULL, DRAFT_KV, "a", "b")] == [False, True, True, False]
    assert rows[DRAFT_KV]["gap_recovered"] == pytest.approx((75 - 25) / (100 - 25))
    assert (rows[FULL]["gap_recovered"], rows[FULL]["ttft_ratio"]) == (1, 2)
    # There is no gap to recover if the draft is as good as the target.
    assert (gap_recovered(10, 20, 60), gap_recovered(50, 40, 40)) == (pytest.approx(-0.25), None)
    assert rows["a"]["f1_low"] <= 50 <= rows["a"]["f1_high"]
    assert rows["a"]["n"] == 2


def test_paired_difference_verdict_follows_its_interval():
    higher, lower = tally([50, 60, 70, 80] * 5, 1.0), tally([40, 50, 60, 70] * 5, 1.0)
    assert paired_difference(higher, lower, "x")["difference"] == 10
    for other, verdict in ((lower, "better"), (tally([70, 40, 90, 60] * 5, 1.0), "undecided")):
        assert paired_difference(higher, other, "x")["verdict"] == verdict
    assert paired_difference(lower, higher, "x")["verdict"] == "worse"
    assert paired_difference(tally([50] * 19, 1.0), tally([10] * 19, 1.0), "x")["verdict"] == TOO_FEW


def test_wrong_document_is_never_the_same_text():
    items = [item(0), item(1), item(2, "Another text altogether."), item(3)]
    assert [other_document(items, number).identifier for number in range(4)] == ["2", "2", "3", "2"]
    assert other_document(items[:2], 0) is None
    # A document that is long enough is preferred to a nearer one.
    assert other_document([item(0), item(1, "Short."), item(2, TEXT[::-1])], 0).identifier == "2"


def test_shorter_wrong_document_is_repeated_to_fill_every_slot(random_session):
    """Any KV left of the right document would make the control look better than it is."""
    right = mapped_kv(random_session, item(), SETTINGS)
    wrong = mapped_kv(random_session, item(1, "Rain fell on the harbour all day."), SETTINGS)
    request = random_session.request(item().collection, "When?", SETTINGS)
    start, end = request.prompt.document
    replaced = splice_document(wrong, right, (start, end))
    for (keys, values), (old_keys, old_values), other in zip(replaced.layers, right.layers, wrong.layers, strict=True):
        torch.testing.assert_close(keys[:, :start], old_keys[:, :start])
        torch.testing.assert_close(values[:, :start], old_values[:, :start])
        document = range(start, len(wrong.slots))
        repeated = [document[place % len(document)] for place in range(end - start)]
        assert end - start > 2 * len(document)
        torch.testing.assert_close(keys[:, start:end], other[0][:, repeated])
        torch.testing.assert_close(values[:, start:end], other[1][:, repeated])


def test_controls_differ_from_draft_kv_and_each_other(random_session):
    session = random_session
    # Long enough for the smallest budget to cover a chunk.
    text = TEXT * 4
    rain = item(1, "Rain fell on the harbour all day and nobody came to the market. " * 56)
    wrong = mapped_kv(session, rain, SETTINGS)
    draft_alone = draft_session(session)
    streams = {
        condition.label: answer_with(
            draft_alone if condition.by_draft else session,
            item(text=text).collection,
            "When?",
            condition.settings(SETTINGS),
            control=condition.control,
        )
        for condition in conditions(KEPT, wrong)
    }
    logits = {name: stream.prefilled.logits for name, stream in streams.items()}
    names = list(logits)
    for place, first in enumerate(names):
        for second in names[place + 1 :]:
            assert (logits[first] - logits[second]).abs().max() > 1e-4, f"{first} and {second} are the same"
    plans = {name: stream.prefilled.plan for name, stream in streams.items()}
    drafted_plan, dropped = plans[DRAFT_KV], plans[REST_DROPPED]
    assert dropped.kept_tokens == drafted_plan.kept_tokens == streams[REST_DROPPED].prefilled.state.length
    assert {span.fate for span in dropped.spans} == {Fate.RECOMPUTE, Fate.DROP}
    assert [(s.start, s.end) for s in drafted_plan.spans if s.fate is Fate.RECOMPUTE] == [
        (s.start, s.end) for s in dropped.spans if s.fate is Fate.RECOMPUTE
    ]
    at_random = plans["random tokens recomputed"]
    # Checkpoints inside recomputed chunks are not counted twice, so the totals may differ by a few tokens.
    assert at_random.kept_tokens == pytest.approx(drafted_plan.kept_tokens, abs=drafted_plan.checkpoints)
    assert {span.fate for span in plans[MAPPED_ONLY].spans} == {Fate.ACCEPT}
    zero, wrong_state = streams["zero KV"].prefilled.state, streams[WRONG].prefilled.state
    assert zero.cache.layers[1].keys[..., : zero.length - 30, :].abs().max() == 0
    assert torch.equal(wrong_state.cache.layers[1].keys[..., 30:50, :], wrong.layers[1][0][None, :, 30:50])
    # Only the accepted KV differs; the computed KV is the same.
    drafted, zeros, foreign = (streams[name].prefilled.state for name in (DRAFT_KV, ZEROS_ACCEPTED, WRONG_ACCEPTED))
    assert [plans[name].spans for name in (ZEROS_ACCEPTED, WRONG_ACCEPTED)] == [drafted_plan.spans] * 2
    accepted = (zeros.cache.layers[0].keys[0] == 0).all(-1).all(0)
    first, last = streams[DRAFT_KV].request.prompt.document
    accepted_ratio = float(accepted[first:last].float().mean())
    assert 0.5 < accepted_ratio < 1 - SETTINGS.recompute + 0.05
    assert not accepted[:first].any()
    assert not accepted[last:].any()
    for state in (zeros, foreign):
        layer, drafted_layer = state.cache.layers[0], drafted.cache.layers[0]
        torch.testing.assert_close(layer.keys[0][:, ~accepted], drafted_layer.keys[0][:, ~accepted])
        assert not torch.allclose(layer.values[0][:, accepted], drafted_layer.values[0][:, accepted])

"""Fates by chunk and layer: the budget, the order in which it is spent, and `--recompute-by layer` on every architecture."""

import hypothesis
import hypothesis.strategies as st
import pytest
import torch

from specprefill_cli.answering.cells import span_records
from specprefill_cli.documents.document import Collection, one_page_document
from specprefill_cli.draft_kv import chunk_fates, modes
from specprefill_cli.draft_kv.checkpoints import chunk_risks
from specprefill_cli.draft_kv.chunk_fates import (
    ACCEPT,
    RECOMPUTE,
    depths_by_risk,
    fates_by_risk,
    layer_risks,
    remaining_layer_risk,
)
from specprefill_cli.models.cache import layer_count, layer_keys
from specprefill_cli.prefill.registry import MODES
from specprefill_cli.record import Fate
from specprefill_cli.settings import Settings
from tests.helpers.architectures import ARCHITECTURES

TEXT = "The north gate opens at nine. Tickets cost four euros. The keeper lives by the old mill near the river. " * 8
COLLECTION = Collection((one_page_document("doc", TEXT, "text/plain"),))


def depths(risks, share, accept_risk=None, first=1):
    size = {"prompt_tokens": 32 * risks.shape[1], "chunk_size": 32}
    return depths_by_risk(risks, first=first, share=share, accept_risk=accept_risk, **size)


def passes(depths_, first=1):
    """Passes of a chunk through one layer that the depths cost."""
    return int((depths_ - 1)[depths_ > first].sum())


def request_for(session, **settings):
    settings = {"mode": "draft-kv", "scorer": "question", "look_ahead": 1, "recompute_by": "layer", **settings}
    return session.request(COLLECTION, "When does the gate open?", Settings(**settings))


def test_risk_in_lower_layers_is_recomputed_there_and_risk_in_upper_layers_in_whole_chunks():
    """The budget is two chunks through the three layers below the last one: one chunk has to go deep, three need not."""
    risks = torch.tensor([[0.0, 0, 0, 0, 0, 0, 0, 0], [3, 3, 3, 0, 0, 0, 0, 0], [0] * 8, [0, 0, 0, 9, 1, 1, 1, 1]])
    assert depths(risks, 0.25).tolist() == [2, 2, 2, 4, 1, 1, 1, 1]
    assert fates_by_risk(risks.sum(0), prompt_tokens=256, chunk_size=32, share=0.25).tolist().count(RECOMPUTE) == 2


@hypothesis.given(st.integers(2, 7), st.integers(1, 30), st.floats(0, 0.99), st.integers(1, 2), st.integers(0, 10_000))
@hypothesis.settings(max_examples=60)
def test_a_grid_costs_no_more_and_removes_at_least_as_much_risk_as_whole_chunks(layers, chunks, share, first, seed):
    risks = torch.rand(layers, chunks, generator=torch.Generator().manual_seed(seed)) ** 3
    risks[: min(first, layers - 1)] = 0
    first = min(first, layers - 1)
    ours = depths(risks, share, first=first)
    whole = fates_by_risk(risks.sum(0), prompt_tokens=32 * chunks, chunk_size=32, share=share)
    count = int((whole == RECOMPUTE).sum())
    assert int(ours.min()) >= first
    assert passes(ours, first) <= count * (layers - 1)
    # One chunk's passes are what rounding to whole depths may leave unspent.
    ceiling = fates_by_risk(risks.sum(0), prompt_tokens=32 * chunks, chunk_size=32, share=max(0.0, share - 1 / chunks))
    depth_of = torch.where(ceiling == RECOMPUTE, layers, first)
    assert remaining_layer_risk(risks, ours) <= remaining_layer_risk(risks, depth_of) + 1e-6


def test_a_given_risk_ends_the_recomputing_and_no_budget_or_a_whole_one_are_none_and_all():
    risks = torch.rand(4, 20, generator=torch.Generator().manual_seed(1))
    risks[0] = 0
    total = float(risks.sum())
    enough = depths(risks, 0.9, accept_risk=0.6 * total)
    assert 0.5 * total < remaining_layer_risk(risks, enough) <= 0.6 * total
    assert passes(enough) < passes(depths(risks, 0.9))
    assert depths(risks, 0.9, accept_risk=total).tolist() == [1] * 20
    assert depths(risks, 0.0).tolist() == [1] * 20
    assert depths(risks, 1.0).tolist() == [4] * 20


def test_layer_risks_add_up_to_those_of_chunks():
    mass, errors = torch.rand(3, 70), torch.rand(3, 70)
    torch.testing.assert_close(layer_risks(mass, errors, 32).sum(0), chunk_risks(mass, errors, 32))


@pytest.mark.parametrize("random_pair", sorted(set(ARCHITECTURES) - {"mistral"}), indirect=True)
def test_a_grid_of_all_layers_is_full_prefill_and_one_of_none_accepts_what_a_budget_of_0_does(random_session):
    ours = MODES["draft-kv"].prefill(request_for(random_session, recompute=1.0))
    expected = MODES["full"].prefill(request_for(random_session))
    torch.testing.assert_close(ours.logits, expected.logits, atol=1e-4, rtol=1e-4)
    assert {(span.fate, span.layers) for span in ours.plan.spans} == {(Fate.RECOMPUTE, 3)}
    ours, expected = (
        MODES["draft-kv"].prefill(request_for(random_session, recompute=0.0, recompute_by=by))
        for by in ("layer", "span")
    )
    assert torch.equal(ours.logits, expected.logits)
    assert {(span.fate, span.layers) for span in ours.plan.spans} == {(Fate.ACCEPT, 1)}


def stairs(monkeypatch):
    """Make the grid of every prompt a staircase, whatever the risks."""

    def depths_of(risks, **_):
        layers, chunks = risks.shape
        return 1 + torch.arange(chunks) % layers

    monkeypatch.setattr(chunk_fates, "depths_by_risk", depths_of)


def test_accepted_layers_keep_the_mapped_kv_and_the_plan_says_how_many_were_computed(random_session, monkeypatch):
    stairs(monkeypatch)
    request = request_for(random_session, recompute=0.4)
    mapped = modes.map_prompt(request, modes.find_map(request, "draft-kv"))
    before = [layer_keys(mapped.state, layer).clone() for layer in range(layer_count(random_session.pair.target.model))]
    ours = MODES["draft-kv"].prefill(request)
    for span in ours.plan.spans:
        assert span.fate is (Fate.RECOMPUTE if span.layers == len(before) else Fate.ACCEPT)
        for layer, keys in enumerate(before):
            same = torch.equal(layer_keys(ours.state, layer)[:, span.start : span.end], keys[:, span.start : span.end])
            # The first layer's keys depend on the token alone.
            assert same == (layer >= span.layers or layer == 0), (span, layer)
    records = span_records(COLLECTION, request.prompt, ours.plan)
    assert [record.layers for record in records] == [span.layers for span in ours.plan.spans]


def test_spans_without_draft_kv_have_no_layers_and_those_of_hybrid_have_those_of_their_fate(random_session):
    plans = {
        mode: MODES[mode].prefill(request_for(random_session, mode=mode, keep=0.2, accept_risk="off")).plan
        for mode in ("select", "full", "hybrid")
    }
    assert {span.layers for mode in ("select", "full") for span in plans[mode].spans} == {None}
    layers = {Fate.RECOMPUTE: 3, Fate.ACCEPT: 1, Fate.DROP: 0}
    assert all(span.layers == layers[span.fate] for span in plans["hybrid"].spans)


def test_fates_are_accept_until_all_layers_are_recomputed(random_session, monkeypatch):
    stairs(monkeypatch)
    request = request_for(random_session)
    kv_map = modes.find_map(request, "draft-kv")
    mapped = modes.map_prompt(request, kv_map)
    fates = MODES["draft-kv"].choose_fates(request, mapped, kv_map, modes.risk_limit("off", None))
    assert torch.equal(fates.chunks == RECOMPUTE, fates.depths == 3)
    assert set(fates.chunks.tolist()) == {ACCEPT, RECOMPUTE}
    risks = layer_risks(mapped.inspection.mass, mapped.inspection.errors, request.chunk_size)
    assert fates.gate.risk == pytest.approx(remaining_layer_risk(risks, fates.depths))

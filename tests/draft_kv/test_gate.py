"""The gate of draft KV: calibrated or given, in both modes, on maps that are right, wrong, or zero."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from specprefill_cli.draft_kv import mapped_cache, modes
from specprefill_cli.draft_kv.checkpoints import copy_slots
from specprefill_cli.draft_kv.gate import ACCEPT, DROP, RECOMPUTE, Gate, drop_riskiest
from specprefill_cli.draft_kv.mapped_cache import mapped_state
from specprefill_cli.draft_kv.projection import (
    KvCalibration,
    KvMap,
    LayerFit,
    find_map,
    pair_calibration,
    pair_identity,
    set_calibration,
)
from specprefill_cli.draft_kv.raw_kv import attention_module
from specprefill_cli.lab.study.controls import cache_of, copy_cache, splice_document, zero_kv
from specprefill_cli.record import Fate
from tests.draft_kv import helpers

FOREIGN = "Rain fell on the harbour all day and nobody came to the market. " * 14
BUDGETED = {"draft-kv": {"recompute": 0.15}, "hybrid": {"keep": 0.15}}
SMALLEST_RISKS = {"0.05": 0.9, "0.3": 0.4, "0.5": 0.2}


def gate(threshold):
    return Gate(threshold=threshold, target=0.1, n=60, auroc=0.8)


def prefilled(session, mode, **settings):
    """A prefill with a small budget."""
    return helpers.prefilled(session, mode, **{**BUDGETED.get(mode, {}), **settings})


def set_map(session, *, gate=None, scale=None):
    """Give the pair's map a gate, and other weights: `scale` times its own."""
    calibration = pair_calibration(session.pair)
    kv_map = calibration.kv_map
    weights = kv_map.weights if scale is None else {layer: scale * part for layer, part in kv_map.weights.items()}
    changed = replace(kv_map, gate=gate, weights=weights)
    set_calibration(session.pair, replace(calibration, kv_map=changed))


@pytest.fixture
def own_draft(random_session):
    """A session whose target is its own draft, with the map that its own projections are."""
    target = random_session.pair.target
    fits, weights = [], {}
    for layer in range(1, target.model.config.num_hidden_layers):
        module = attention_module(target.model, layer)
        columns = torch.cat([module.k_proj.weight, module.v_proj.weight]).detach().T
        weights[layer] = torch.cat([columns, torch.zeros(1, columns.shape[1])])
        fits.append(LayerFit(layer, (layer,), 0.0, 0.0, 0.0))
    pair = replace(random_session.pair, draft=target, scoring_heads=None)
    set_calibration(pair, KvCalibration(pair_identity(pair), 0, KvMap(tuple(fits), weights)))
    random_session.pair = pair
    return random_session


def test_the_riskiest_accepted_chunks_are_dropped_until_the_others_are_within_the_limit():
    fates = torch.tensor([RECOMPUTE, ACCEPT, ACCEPT, DROP, ACCEPT])
    risks = torch.tensor([9.0, 0.1, 0.4, 9.0, 0.2])
    for limit, expected in ((1.0, []), (0.3, [2]), (0.1, [2, 4]), (0.0, [1, 2, 4])):
        dropped = (drop_riskiest(fates, risks, limit) != fates).nonzero()[:, 0].tolist()
        assert dropped == expected


@helpers.every_architecture
def test_draft_kv_falls_back_to_full_above_the_calibrated_threshold_and_says_why(random_session):
    set_map(random_session, gate=gate(1e-4))
    ours = prefilled(random_session, "draft-kv")
    (warning,) = ours.warnings
    assert warning.startswith("fell back to full prefill: with ")
    assert f"a risk of {ours.gate.risk:.3g} would remain, above the calibrated 0.0001 (first-token KL" in warning
    assert (ours.gate.threshold, ours.gate.accepted) == (1e-4, False)
    assert torch.equal(ours.logits, prefilled(random_session, "full").logits)
    set_map(random_session, gate=gate(1e4))
    accepted = prefilled(random_session, "draft-kv")
    assert accepted.gate.accepted
    assert not accepted.warnings
    assert accepted.plan.kept_ratio < 0.5


@pytest.mark.parametrize("setting", ["off", 1e4])
def test_the_gate_can_be_overridden_and_switched_off(random_session, setting):
    set_map(random_session, gate=gate(1e-4))
    ours = prefilled(random_session, "draft-kv", accept_risk=setting)
    assert ours.gate.accepted
    assert ours.gate.threshold == (None if setting == "off" else setting)
    assert any(span.fate is Fate.ACCEPT for span in ours.plan.spans)
    set_map(random_session, gate=gate(1e4))
    assert "above accept_risk 0" in prefilled(random_session, "draft-kv", accept_risk=0.0).warnings[0]


def test_a_calibrated_gate_spends_the_whole_budget_a_given_risk_only_what_it_needs(random_session):
    recomputed = {}
    for setting in ("auto", 1e4):
        set_map(random_session, gate=gate(1e4))
        recomputed[setting] = prefilled(random_session, "draft-kv", recompute=0.5, accept_risk=setting).plan.kept_ratio
    assert recomputed["auto"] > 0.5 > recomputed[1e4]


def test_hybrid_drops_the_risky_chunks_and_keeps_the_others(random_session, monkeypatch):
    # A random map is worse than none everywhere.
    monkeypatch.setattr(modes, "USELESS_ERROR", float("inf"))
    free = prefilled(random_session, "hybrid", accept_risk="off")
    assert any(span.fate is Fate.ACCEPT for span in free.plan.spans)
    set_map(random_session, gate=gate(free.gate.risk / 2))
    ours = prefilled(random_session, "hybrid")
    assert {span.fate for span in ours.plan.spans} == set(Fate)
    assert sum(span.risk for span in ours.plan.spans if span.fate is Fate.ACCEPT) <= free.gate.risk / 2
    assert not ours.gate.accepted
    assert ours.gate.risk == pytest.approx(free.gate.risk)
    assert "chunks: if they were accepted too, a risk of " in ours.warnings[-1]
    assert [(s.start, s.end) for s in ours.plan.spans if s.fate is Fate.RECOMPUTE] == [
        (s.start, s.end) for s in free.plan.spans if s.fate is Fate.RECOMPUTE
    ]


@pytest.mark.parametrize(
    ("refusing", "reason"),
    [
        (gate(0.0), "calibration found no draft KV of this pair"),
        (
            replace(gate(0.3), smallest_risks=SMALLEST_RISKS),
            "with 15% recomputed, no prompt of the calibration had a risk below 0.4, and at most 0.3 may remain (first-token KL",
        ),
    ],
    ids=["any budget", "a small budget"],
)
@pytest.mark.parametrize(("mode", "substitute"), [("draft-kv", "full"), ("hybrid", "select")])
def test_what_calibration_rules_out_is_refused_before_anything_is_mapped(
    random_session, mode, substitute, refusing, reason, monkeypatch
):
    draft_passes = []
    random_session.pair.draft.model.model.register_forward_hook(lambda *_: draft_passes.append(1))
    set_map(random_session, gate=refusing)
    expected = prefilled(random_session, substitute, keep=0.15)
    scored = len(draft_passes)
    del draft_passes[:]
    with monkeypatch.context() as patch:
        patch.setattr(modes, "score_and_map", None)
        ours = prefilled(random_session, mode)
        # Between two budgets the larger one tells.
        prefilled(random_session, mode, **{next(iter(BUDGETED[mode])): 0.3})
    assert len(draft_passes) == 2 * scored
    assert scored == 0 if substitute == "full" else scored > 0
    assert torch.equal(ours.logits, expected.logits)
    assert ours.plan == expected.plan
    assert ours.warnings[-1].startswith(f"prefilled in mode {substitute}: {reason}")
    assert (ours.gate.threshold, ours.gate.risk, ours.gate.accepted) == (refusing.threshold, None, False)
    assert prefilled(random_session, mode, accept_risk="off").gate.risk is not None


@pytest.mark.parametrize(
    ("mode", "settings"),
    [
        ("draft-kv", {"recompute": 0.4}),
        ("draft-kv", {"recompute": 0.6}),
        ("draft-kv", {"accept_risk": "off"}),
        ("draft-kv", {"accept_risk": 0.3}),
        ("hybrid", {"keep": None}),
        ("hybrid", {"keep": 0.5}),
    ],
)
def test_where_a_prompt_might_pass_the_gate_the_draft_runs_and_its_kv_is_judged(random_session, mode, settings):
    set_map(random_session, gate=replace(gate(0.3), smallest_risks=SMALLEST_RISKS))
    assert prefilled(random_session, mode, **settings).gate.risk is not None


def foreign_kv(session):
    """The mapped KV of a prompt about another document."""
    request = helpers.request_for(session, FOREIGN)
    _, state = mapped_cache.score_and_map(request, find_map(request, "draft-kv"))
    return copy_slots(state, torch.arange(request.prompt.document[1]))


def replace_mapped_kv(monkeypatch, contents):
    """From now on, put other contents into every mapped cache."""

    def replaced(request, kv_map, states):
        return cache_of(contents(copy_cache(mapped_state(request, kv_map, states)), request.prompt.document))

    monkeypatch.setattr(mapped_cache, "mapped_state", replaced)


def test_the_tightest_gate_passes_native_kv_and_no_corrupted_kv(own_draft, monkeypatch):
    """A gate that passes native KV must not pass zeros, noise, KV at the wrong scale, or KV of another document."""
    set_map(own_draft, gate=gate(1e-4))
    ours = prefilled(own_draft, "draft-kv")
    assert ours.gate.accepted
    assert ours.gate.risk < 1e-5
    torch.testing.assert_close(ours.logits, prefilled(own_draft, "full").logits, atol=1e-3, rtol=1e-3)
    right = pair_calibration(own_draft.pair)
    for scale in (0.0, -1.0, 2.0):
        set_calibration(own_draft.pair, right)
        set_map(own_draft, gate=gate(1e-4), scale=scale)
        assert not prefilled(own_draft, "draft-kv").gate.accepted, scale
    set_calibration(own_draft.pair, right)
    replace_mapped_kv(monkeypatch, partial(splice_document, foreign_kv(own_draft)))
    assert not prefilled(own_draft, "draft-kv").gate.accepted


def test_the_bundled_gate_refuses_zeros_and_another_documents_kv(tiny_session, monkeypatch):
    right = prefilled(tiny_session, "draft-kv", recompute=0.5)
    assert right.gate.threshold is not None
    wrong = partial(splice_document, foreign_kv(tiny_session))
    for contents in (lambda kv, _document: zero_kv(kv), wrong):
        with monkeypatch.context() as patch:
            replace_mapped_kv(patch, contents)
            corrupted = prefilled(tiny_session, "draft-kv", recompute=0.5)
        assert not corrupted.gate.accepted
        assert corrupted.gate.risk > 1.5 * right.gate.risk
        assert "fell back to full prefill" in corrupted.warnings[-1]


def test_risk_that_is_no_number_is_never_accepted(random_session):
    set_map(random_session, scale=float("nan"))
    ours = prefilled(random_session, "draft-kv", accept_risk="off")
    assert not ours.gate.accepted
    assert "a risk of nan would remain" in ours.warnings[-1]
    assert not ours.logits.isnan().any()

"""Which chunks of draft KV are recomputed, dropped or always exact, by which signals, and which pairs are rejected."""

from types import SimpleNamespace

import pytest
import torch

from specprefill_cli.draft_kv import modes
from specprefill_cli.draft_kv.checkpoints import causal_output, copy_slots
from specprefill_cli.draft_kv.gate import ACCEPT, RECOMPUTE, chunks_to_recompute, fates_by_risk
from specprefill_cli.draft_kv.mapped_cache import ALWAYS_EXACT, inspect, score_and_map
from specprefill_cli.draft_kv.projection import find_map
from specprefill_cli.draft_kv.raw_kv import attention_module
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.running.adapter import prefill, window_layers
from specprefill_cli.models.running.cache import layer_keys
from specprefill_cli.models.running.passes import QueryCapture
from specprefill_cli.prefill.auto_mode import automatic_mode
from specprefill_cli.record import Fate
from tests.draft_kv.helpers import every_architecture, prefilled, request_for
from tests.helpers.architectures import random_tokens

RISKS = torch.tensor([0.1, 0.5, 0.0, 0.3, 0.1])


def recomputed(prompt_tokens, share, chunk_size=32, risks=RISKS, accept_risk=None):
    """Return the indices of the chunks recomputed within a budget."""
    budget = {"prompt_tokens": prompt_tokens, "chunk_size": chunk_size, "share": share}
    fates = fates_by_risk(risks, accept_risk=accept_risk, **budget)
    assert set(fates.tolist()) <= {RECOMPUTE, ACCEPT}
    return (fates == RECOMPUTE).nonzero()[:, 0].tolist()


def test_recomputes_riskiest_chunks_first_and_breaks_ties_by_position():
    chosen = [recomputed(200, share) for share in (0.16, 0.32, 0.48, 1.0)]
    assert chosen == [[1], [1, 3], [0, 1, 3], [0, 1, 2, 3, 4]]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.15, 0.159, 0.5, 0.99])
@pytest.mark.parametrize("size", [8, 32, 512])
def test_recomputes_up_to_the_requested_share_of_the_prompt(share, size):
    chosen = recomputed(4_149, share, size, torch.rand(4_000 // size))
    assert len(chosen) * size <= share * 4_149
    assert (len(chosen) + 1) * size > share * 4_149 or len(chosen) == 4_000 // size


def test_stops_recomputing_once_accept_risk_is_met():
    assert [chunks_to_recompute(RISKS, limit) for limit in (1.1, 1.0, 0.5, 0.4, 0.1, 0.0)] == [0, 0, 1, 2, 3, 4]
    assert recomputed(200, 1.0, accept_risk=0.25) == [1, 3]
    assert recomputed(200, 0.16, accept_risk=0.25) == [1], "the budget holds even if the remaining risk is too high"


def test_hybrid_drops_chunks_with_useless_mapped_kv(random_session, monkeypatch):
    """With a useless map, everything not recomputed is dropped; with a perfect map, nothing is."""
    monkeypatch.setattr(modes, "USELESS_ERROR", 0.0)
    useless = prefilled(random_session, "hybrid", keep=0.3)
    spans = useless.plan.spans
    dropped = sum(span.end - span.start for span in spans if span.fate is Fate.DROP)
    assert dropped > 0
    assert not any(span.fate is Fate.ACCEPT for span in spans)
    # Checkpoint tokens inside dropped chunks are already computed and stay in the cache.
    assert useless.state.length == useless.plan.prompt_tokens - dropped + useless.plan.checkpoints
    monkeypatch.setattr(modes, "USELESS_ERROR", float("inf"))
    perfect = prefilled(random_session, "hybrid", keep=0.3)
    assert not any(span.fate is Fate.DROP for span in perfect.plan.spans)
    assert perfect.state.length == perfect.plan.prompt_tokens


def test_the_first_tokens_are_always_exact(random_session):
    ours = prefilled(random_session, "draft-kv", recompute=0.0)
    model, prompt = random_session.pair.target.model, request_for(random_session).prompt
    _, native = prefill(model, prompt.tokens, torch.arange(prompt.length), 10_000)
    for layer in range(model.config.num_hidden_layers):
        mapped, exact = layer_keys(ours.state, layer), layer_keys(native, layer)
        torch.testing.assert_close(mapped[:, :ALWAYS_EXACT], exact[:, :ALWAYS_EXACT], atol=1e-4, rtol=1e-4)
    assert (mapped - exact).abs().max() > 1e-2


@pytest.mark.parametrize("mode", ["draft-kv", "hybrid"])
def test_rejects_different_tokenizers(two_tokenizers, mode):
    with pytest.raises(SpecprefillError, match=f"--mode {mode}: draft and target have different tokenizers"):
        prefilled(two_tokenizers, mode)


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_rejects_length_dependent_rope(random_session, kind):
    target = random_session.pair.target
    target.model.config.rope_parameters = {"rope_type": kind, "rope_theta": 1e4}
    request = SimpleNamespace(pair=random_session.pair, scorer="question")
    with pytest.raises(SpecprefillError, match="rotates its keys by the length"):
        find_map(request, "draft-kv")


@pytest.mark.parametrize(
    ("random_pair", "context", "words"),
    [("llama", 40, "context of 40 tokens is too short"), ("mistral", 4_096, "every layer of the draft sees less")],
    indirect=["random_pair"],
)
def test_auto_uses_full_where_the_draft_cannot_score(random_session, context, words):
    random_session.pair.draft.context = context
    mode, reason = automatic_mode(request_for(random_session))
    assert (mode, words in reason) == ("full", True)


@torch.inference_mode()
def test_attention_of_checkpoints_is_the_models(model):
    """With all tokens as checkpoints, it must equal what the model computes."""
    ids, positions = random_tokens(70), torch.arange(70)
    outputs, queries = [], QueryCapture(positions)
    handle = attention_module(model, 0).o_proj.register_forward_pre_hook(lambda _, inputs: outputs.append(inputs[0]))
    _, state = prefill(model, ids, positions, 1_000, capture=queries)
    handle.remove()
    ours = causal_output(queries, 0, copy_slots(state, positions), window_layers(model.config)[0])
    torch.testing.assert_close(ours.transpose(0, 1).flatten(1), outputs[0][0], atol=1e-4, rtol=1e-4)


@every_architecture
def test_errors_are_zero_for_native_kv_and_high_for_a_bad_map(random_session):
    request = request_for(random_session)
    scores, mapped = score_and_map(request, find_map(request, "draft-kv"))
    native = prefilled(random_session, "full").state
    bad, none = (inspect(request, state, scores) for state in (mapped, native))
    assert none.errors.shape == none.mass.shape == bad.errors.shape
    assert none.errors.abs().max() < 1e-5
    # The first layer is exact; a random map makes every other one wrong.
    assert bad.errors[0].max() < 1e-5
    assert (bad.errors[1:].mean(1) > 0.01).all()

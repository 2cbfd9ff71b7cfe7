"""The cost model compared with the operations that torch counts while the models run."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, Qwen3Config

from specprefill_cli.documents.document import Collection, one_page_document
from specprefill_cli.models.adapter import prefill, read_keys
from specprefill_cli.models.attention import ATTENTION
from specprefill_cli.models.attention_plan import SINKS, LocalWindow
from specprefill_cli.models.cache import new_state
from specprefill_cli.models.cost import ModelCost, attended_pairs
from specprefill_cli.prefill.registry import SCORERS
from specprefill_cli.settings import Settings
from tests.helpers.architectures import SIZES

CONFIGS = {
    "llama": lambda: LlamaConfig(**SIZES),
    "qwen3": lambda: Qwen3Config(**SIZES | {"num_hidden_layers": 5}, head_dim=32),
}


@pytest.fixture(params=sorted(CONFIGS))
def model(request):
    return AutoModelForCausalLM.from_config(CONFIGS[request.param](), attn_implementation=ATTENTION).eval()


def count_flops(work):
    """Return the FLOPs torch counts: in linear layers, and in attention (as batched products over all pairs)."""
    counter = FlopCounterMode(display=False)
    # Torch has no FLOP formula for the fused CPU kernel.
    with counter, sdpa_kernel(SDPBackend.MATH):
        work()
    by_kind = counter.get_flop_counts()["Global"]
    attention = sum(value for kind, value in by_kind.items() if "bmm" in str(kind))
    return sum(by_kind.values()) - attention, attention


@pytest.mark.parametrize("tokens", [100, 900])
def test_prefill_flops_match_torch_within_two_percent(model, tokens):
    ids = torch.randint(3, 8_000, (tokens,))
    linear, attention = count_flops(lambda: prefill(model, ids, torch.arange(tokens), 10_000))
    cost = ModelCost.of(model.config)
    attention_cost = cost.prefill_flops(tokens) - without_attention(cost).prefill_flops(tokens)
    assert without_attention(cost).prefill_flops(tokens) == pytest.approx(linear, rel=0.02)
    # In the last layer a single query attends to all keys.
    last = 4.0 * tokens * cost.heads * cost.head_size
    assert attention_cost == pytest.approx(causal_part(attention - last, tokens) + last, rel=0.001)


def test_flops_behind_a_cached_document_match_torch_within_two_percent(model):
    ids, past = torch.randint(3, 8_000, (400,)), 300
    _, state = prefill(model, ids[:past], torch.arange(past), 10_000)
    linear, attention = count_flops(lambda: prefill(model, ids[past:], torch.arange(past, 400), 10_000, state=state))
    cost = ModelCost.of(model.config)
    assert without_attention(cost).prefill_flops(100, past=past) == pytest.approx(linear, rel=0.02)
    last = 4.0 * 400 * cost.heads * cost.head_size
    # Torch counts every pair; of the 400 keys the 100 queries see 350.5 on average.
    expected = (attention - last) * 350.5 / 400 + last
    assert cost.prefill_flops(100, past=past) - without_attention(cost).prefill_flops(100, past=past) == pytest.approx(
        expected, rel=0.001
    )


def test_early_exit_flops_match_torch_within_two_percent(model):
    ids = torch.randint(3, 8_000, (300,))
    linear, attention = count_flops(lambda: read_keys(model, ids, torch.arange(300), 10_000, 1, None, new_state()))
    cost = ModelCost.of(model.config)
    assert without_attention(cost).reading_flops(300, 1) == pytest.approx(linear, rel=0.02)
    attention_cost = cost.reading_flops(300, 1) - without_attention(cost).reading_flops(300, 1)
    assert attention_cost == pytest.approx(causal_part(attention, 300), rel=0.001)


def causal_part(square, tokens):
    """Return the FLOPs of pairs at or below the diagonal, from those that torch counts for all pairs of `tokens`."""
    return square * (tokens + 1) / (2 * tokens)


def without_attention(cost):
    class Linear(ModelCost):
        def attention_flops(self, *_):
            return 0.0

    return Linear(**vars(cost))


@pytest.mark.parametrize("layer_window", [None, 48, 200])
@pytest.mark.parametrize(("tokens", "window", "until"), [(500, 64, 460), (500, 64, 500), (60, 64, 50), (500, 480, 460)])
def test_attended_pairs_with_local_window_are_exact(tokens, window, until, layer_window):
    query, key = torch.arange(tokens)[:, None], torch.arange(tokens)[None]
    near = (key > query - window) | (key < SINKS)
    # A layer's sliding window applies alone where it is narrower than the local window.
    reads_locally = (
        (query < until) if layer_window is None or window < layer_window else torch.zeros_like(query, dtype=torch.bool)
    )
    inside = torch.ones_like(near) if layer_window is None else key > query - layer_window
    seen = (key <= query) & torch.where(reads_locally & (min(tokens, until) > window), near, inside)
    assert attended_pairs(tokens, 0, layer_window, LocalWindow(window, until)) == pytest.approx(
        int(seen.sum()), rel=0.002
    )


@pytest.mark.parametrize(("tokens", "past"), [(100, 0), (30, 20), (30, 100), (200, 10)])
def test_attended_pairs_with_sliding_window_are_exact(tokens, past):
    query, key = torch.arange(past, past + tokens)[:, None], torch.arange(past + tokens)[None]
    seen = (key <= query) & (key > query - 50)
    assert attended_pairs(tokens, past, 50) == int(seen.sum())


def test_sliding_window_layers_cost_less():
    sizes = SIZES | {"num_hidden_layers": 6}
    full, windowed = (
        ModelCost.of(Gemma3TextConfig(**sizes, sliding_window=64, layer_types=[kind] * 5 + ["full_attention"]))
        for kind in ("full_attention", "sliding_attention")
    )
    near, far = attended_pairs(2_000, 0, 64), attended_pairs(2_000, 0, None)
    assert windowed.attention_flops(2_000) / full.attention_flops(2_000) == pytest.approx((5 * near + far) / (6 * far))
    assert windowed.reading_flops(2_000, 5) < full.reading_flops(2_000, 5)


def test_draft_run_on_every_rank_counts_once_per_rank(random_session, monkeypatch):
    collection = Collection((one_page_document("doc", "The gate is green. " * 40, "text/plain"),))
    settings = Settings(mode="select", scorer="question")
    request = random_session.request(collection, "Which colour?", settings)
    scorer = SCORERS["question"]
    shared = replace(request, pair=replace(request.pair, ranks=SimpleNamespace(size=4)))
    assert scorer.cost(shared) == 4 * scorer.cost(request) > 0
    # Ranks that share the draft do its work once.
    monkeypatch.setattr(request.draft.model, "_tp_size", 4)
    assert scorer.cost(shared) == scorer.cost(request)


def test_mixture_of_experts_costs_only_active_experts():
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    mixtral = transformers.MixtralConfig(**sizes, num_experts_per_tok=2, num_local_experts=8)
    qwen = transformers.Qwen3MoeConfig(**sizes, num_experts_per_tok=3, moe_intermediate_size=32)
    dense = transformers.LlamaConfig(**sizes)
    widths = [ModelCost.of(config).intermediate_size for config in (dense, mixtral, qwen)]
    assert widths == [96, 2 * 96, 3 * 32]

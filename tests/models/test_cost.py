"""The cost model: operations that torch counts while models run."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import Gemma3TextConfig

from specprefill_cli.models.machine.cost import ModelCost, attended_pairs, cost_of
from specprefill_cli.models.running.adapter import prefill
from specprefill_cli.models.running.attention_plan import LocalWindow
from specprefill_cli.models.running.packed import last_token_runs_apart
from specprefill_cli.prefill.registry import SCORERS
from specprefill_cli.settings import Settings
from tests.helpers.architectures import SIZES, build_model
from tests.helpers.sessions import collection_of, request_for
from tests.helpers.visibility import visibility

DOCUMENT = collection_of("The gate opens at nine. " * 400)


@pytest.fixture(params=["llama", "qwen3"])
def model(request):
    layers = 5 if request.param == "qwen3" else 3
    return build_model(request.param, num_hidden_layers=layers, layer_types=["full_attention"] * layers)


def count_flops(work):
    """Return the FLOPs torch counts: in linear layers, and in attention (as batched products over all pairs)."""
    counter = FlopCounterMode(display=False)
    # Torch has no FLOP formula for the fused CPU kernel.
    with counter, sdpa_kernel(SDPBackend.MATH):
        work()
    by_kind = counter.get_flop_counts()["Global"]
    attention = sum(value for kind, value in by_kind.items() if "bmm" in str(kind))
    return sum(by_kind.values()) - attention, attention


def assert_flops(model, counted, flops):
    """Compare what torch counted (in linear layers, in attention) with what a function of the model's cost gives."""
    cost = ModelCost.of(model.config)
    linear, attention = counted
    linear_only = flops(LinearCost(**vars(cost)))
    assert linear_only == pytest.approx(linear, rel=0.02)
    assert flops(cost) - linear_only == pytest.approx(attention, rel=0.001)


def causal_prefill(model, attention, tokens):
    """The causal part of a prefill's attention, whose last token may run apart and then attends to all keys."""
    cost = ModelCost.of(model.config)
    if not last_token_runs_apart(tokens, cost.layers, cost.overhead_tokens):
        return causal_part(attention, tokens)
    last = 4.0 * tokens * cost.heads * cost.head_size * cost.layers
    return causal_part(attention - last, tokens - 1) + last


@pytest.mark.parametrize("tokens", [100, 900])
def test_prefill_flops_match_torch_within_two_percent(model, tokens):
    ids = torch.randint(3, 8_000, (tokens,))
    linear, attention = count_flops(lambda: prefill(model, ids, torch.arange(tokens), 10_000))
    assert_flops(model, (linear, causal_prefill(model, attention, tokens)), lambda cost: cost.prefill_flops(tokens))


def test_flops_behind_a_cached_document_match_torch_within_two_percent(model):
    ids, past = torch.randint(3, 8_000, (400,)), 300
    _, state = prefill(model, ids[:past], torch.arange(past), 10_000)
    linear, attention = count_flops(lambda: prefill(model, ids[past:], torch.arange(past, 400), 10_000, state=state))
    # Torch counts every pair; of the 400 keys the 100 queries see 350.5 on average.
    assert_flops(model, (linear, attention * 350.5 / 400), lambda cost: cost.prefill_flops(100, past=past))


def test_early_exit_flops_match_torch_within_two_percent(model):
    ids = torch.randint(3, 8_000, (300,))
    linear, attention = count_flops(lambda: prefill(model, ids, torch.arange(300), 10_000, last_layer=1))
    assert_flops(model, (linear, causal_part(attention, 300)), lambda cost: cost.reading_flops(300, 1))


def causal_part(square, tokens):
    """Return the FLOPs of pairs at or below the diagonal, from those that torch counts for all pairs of `tokens`."""
    return square * (tokens + 1) / (2 * tokens)


class LinearCost(ModelCost):
    def attention_flops(self, *_):
        return 0.0


@pytest.mark.parametrize("layer_window", [None, 48, 200])
@pytest.mark.parametrize(("tokens", "window", "until"), [(500, 64, 460), (500, 64, 500), (60, 64, 50), (500, 480, 460)])
def test_attended_pairs_with_local_window_are_exact(tokens, window, until, layer_window):
    positions, local_window = torch.arange(tokens), LocalWindow(window, until)
    seen = int(visibility(positions, positions, layer_window, local_window).sum())
    assert attended_pairs(tokens, 0, layer_window, local_window) == pytest.approx(seen, rel=0.002)


@pytest.mark.parametrize(("tokens", "past"), [(100, 0), (30, 20), (30, 100), (200, 10)])
def test_attended_pairs_with_sliding_window_are_exact(tokens, past):
    seen = visibility(torch.arange(past, past + tokens), torch.arange(past + tokens), 50)
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


def test_the_other_ranks_wait_for_the_draft(random_session):
    request = request_for(random_session, mode="select", scorer="question")
    scorer = SCORERS["question"]
    shared = replace(request, pair=replace(request.pair, ranks=SimpleNamespace(size=4)))
    assert scorer.cost(shared) == 4 * scorer.cost(request) > 0


def test_mixture_of_experts_costs_only_active_experts():
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    mixtral = transformers.MixtralConfig(**sizes, num_experts_per_tok=2, num_local_experts=8)
    qwen = transformers.Qwen3MoeConfig(**sizes, num_experts_per_tok=3, moe_intermediate_size=32)
    dense = transformers.LlamaConfig(**sizes)
    widths = [ModelCost.of(config).intermediate_size for config in (dense, mixtral, qwen)]
    assert widths == [96, 2 * 96, 3 * 32]


def test_a_look_ahead_token_costs_a_pass_of_the_draft(tiny_session):
    request = tiny_session.request(DOCUMENT, "When?", Settings(scorer="question"))
    cost = cost_of(request.pair.draft)
    requests = (request, replace(request, look_ahead=request.look_ahead - 1))
    longer, shorter = (SCORERS["question"].cost(each, True) for each in requests)
    expected = cost.pass_flops(1, request.prompt.length) + cost.overhead_flops()
    assert longer - shorter == pytest.approx(expected, rel=1e-6)

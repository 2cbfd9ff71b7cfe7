"""Memory on long prompts: no allocation quadratic in the prompt length, and independent peak measurements."""

import pytest
import torch

from specprefill_cli.models.running.adapter import prefill
from specprefill_cli.models.running.cache import new_state
from specprefill_cli.models.running.passes import QueryCapture
from specprefill_cli.prefill.fates import Plan, Span
from specprefill_cli.prefill.importance import attention_importance, layer_attention
from specprefill_cli.record import Fate
from tests.helpers.architectures import build_model, random_tokens

LENGTH, CHUNK = 8_192, 2_048
IDS = random_tokens(LENGTH)


def largest_allocation(work):
    """Return the bytes of the largest allocation, including temporaries inside torch."""
    with torch.profiler.profile(profile_memory=True) as trace:
        work()
    events = trace.profiler.kineto_results.events()
    return max(event.nbytes() for event in events if event.name() == "[memory]")


def test_largest_allocation_detects_a_quadratic_tensor():
    assert largest_allocation(lambda: torch.zeros(LENGTH, LENGTH, dtype=torch.bool).any()) >= LENGTH**2


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_target_prefill_allocates_nothing_quadratic(name):
    model = build_model(name)
    assert largest_allocation(lambda: prefill(model, IDS, torch.arange(LENGTH), CHUNK)) < LENGTH**2


def test_sparse_prefill_allocates_nothing_quadratic_in_kept_tokens():
    spans = [Span(start, start + 32, Fate.RECOMPUTE if start % 64 else Fate.DROP) for start in range(0, LENGTH, 32)]
    kept = Plan(LENGTH, (0, LENGTH), tuple(spans)).kept_positions()
    model = build_model("llama")
    # Keeps half of the tokens. The passes are short, so that all but the first need a mask.
    assert largest_allocation(lambda: prefill(model, IDS[kept], kept, 256)) < (LENGTH // 2) ** 2


def test_draft_prefill_and_scoring_allocate_nothing_quadratic():
    model = build_model("llama")
    document = (100, LENGTH - 100)

    def score():
        state, capture = new_state(LENGTH), QueryCapture(torch.arange(LENGTH - 12, LENGTH))
        prefill(model, IDS, torch.arange(LENGTH), CHUNK, state, last_layer=2, capture=capture)
        attention_importance(state, capture, LENGTH, document, [0, 1, 2])
        layer_attention(state, capture, 1, [0, 3], document)

    assert largest_allocation(score) < LENGTH**2

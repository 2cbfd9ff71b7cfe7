"""Attention plans for CPU, CUDA and MPS without the device; masks are checked against visibility by position."""

from dataclasses import replace

import pytest
import torch

from specprefill_cli.draft_kv.mapped_cache import recompute
from specprefill_cli.models.running import attention
from specprefill_cli.models.running.adapter import prefill
from specprefill_cli.models.running.attention import flash_works
from specprefill_cli.models.running.attention_plan import (
    QUERY_BLOCK,
    AttentionDevice,
    LocalWindow,
    Mask,
    plan_attention,
    query_block_size,
    visibility_mask,
)
from specprefill_cli.models.running.cache import new_state
from specprefill_cli.models.running.passes import PositionContext
from tests.helpers.architectures import build_model
from tests.helpers.visibility import visibility


def device(kind, dtype=torch.bfloat16, capability=None, head_size=64, **trial):
    properties = {"kind": kind, "dtype": dtype, "capability": capability, "head_size": head_size}
    return AttentionDevice(**properties, **trial)


DEVICES = {
    "cpu": device("cpu", torch.float32),
    "sm_75": device("cuda", torch.float16, (7, 5)),
    "sm_80": device("cuda", capability=(8, 0)),
    "sm_90": device("cuda", capability=(9, 0)),
    "sm_90, float32": device("cuda", torch.float32, (9, 0)),
    "sm_90, head 512": device("cuda", capability=(9, 0), head_size=512),
    # AMD's gfx942: ROCm reports itself as CUDA; its flash attention is not used.
    "ROCm": device("cuda", capability=(9, 4), flash_works=False),
}
FLASH = ("sm_80", "sm_90")
CUDA = (*FLASH, "ROCm", "sm_75", "sm_90, float32", "sm_90, head 512")

GAPPED = torch.arange(400)[torch.arange(400) % 7 != 3]
# Name of the pass: query positions, key positions, the layer's sliding window, and the pass's local window.
PASSES = {
    "whole prompt": (torch.arange(400), torch.arange(400), None, None),
    "kept tokens": (GAPPED, GAPPED, None, None),
    "second pass": (torch.arange(100, 400), torch.arange(400), None, None),
    "decoding": (torch.tensor([400]), torch.arange(401), None, None),
    "recompute": (torch.tensor([5, 90, 91, 380]), torch.arange(400), None, None),
    "sliding window": (torch.arange(400), torch.arange(400), 48, None),
    "decoding with a window": (torch.tensor([400]), torch.arange(401), 48, None),
    "window that reaches all": (torch.arange(400), torch.arange(400), 400, None),
    "draft window": (torch.arange(400), torch.arange(400), None, LocalWindow(64, 380)),
    "draft window, gaps": (GAPPED, GAPPED, None, LocalWindow(64, 380)),
    "draft window, second pass": (torch.arange(100, 400), torch.arange(400), None, LocalWindow(64, 380)),
    "draft window inside a wider one": (torch.arange(400), torch.arange(400), 200, LocalWindow(64, 380)),
    "draft window around a narrower one": (torch.arange(400), torch.arange(400), 48, LocalWindow(64, 380)),
    "draft window that reaches all": (torch.arange(60), torch.arange(60), None, LocalWindow(64, 50)),
}

EVERY = tuple(DEVICES)
EXCEPT_FLASH = tuple(name for name in EVERY if name not in FLASH)


def plans(attention_pass, names):
    queries, keys, window, local_window = PASSES[attention_pass]
    return {name: plan_attention(queries, keys, DEVICES[name], window, local_window) for name in names}


@pytest.mark.parametrize(
    ("attention_pass", "names", "masks"),
    [
        # One call for all queries, without a mask tensor.
        ("whole prompt", EVERY, [Mask.CAUSAL]),
        ("kept tokens", EVERY, [Mask.CAUSAL]),
        ("decoding", EVERY, [Mask.NONE]),
        ("second pass", FLASH, [Mask.LOWER_RIGHT]),
        # Otherwise a mask tensor: shared by the whole pass if the queries are the last keys, else one per segment.
        ("second pass", EXCEPT_FLASH, [Mask.TRAILING]),
        ("recompute", EVERY, [Mask.EXPLICIT]),
        ("sliding window", EVERY, [Mask.EXPLICIT]),
        # Queries before the band, the band in full blocks, its remainder, and the suffix, which sees everything.
        ("draft window", EVERY, [Mask.EXPLICIT, Mask.BANDED, Mask.EXPLICIT, Mask.TRAILING]),
        ("draft window, second pass", EVERY, [Mask.BANDED, Mask.EXPLICIT, Mask.TRAILING]),
        ("draft window, gaps", EVERY, [Mask.EXPLICIT] * 3 + [Mask.TRAILING]),
        ("draft window around a narrower one", EVERY, [Mask.EXPLICIT] * 4),
    ],
)
def test_plans_the_fastest_kernel_that_is_exact(attention_pass, names, masks):
    for name, plan in plans(attention_pass, names).items():
        assert [segment.mask for segment in plan.segments] == masks, name


@pytest.mark.parametrize(("attention_pass", "names", "repeated"), [
    ("whole prompt", ("cpu", *FLASH), False),
    ("whole prompt", ("sm_75", "sm_90, float32", "sm_90, head 512"), True),
    ("second pass", ("cpu", *FLASH), False), ("decoding", ("cpu", *CUDA), False), ("sliding window", CUDA, True),
    ("draft window", CUDA, True), ("draft window", ("cpu",), False),
])  # fmt: skip
def test_repeats_kv_heads_only_for_kernels_without_grouped_queries(attention_pass, names, repeated):
    for name, plan in plans(attention_pass, names).items():
        assert plan.expand_kv_heads is repeated, name


def test_torch_is_asked_about_flash_attention_as_the_lower_right_bias_calls_it(monkeypatch):
    """Torch refuses flash attention with the causal flag where there are fewer queries than keys."""

    class Described:
        def __init__(self, query, key, value, mask, dropout, is_causal, enable_gqa):
            self.refused = is_causal and query.shape[2] != key.shape[2]

    monkeypatch.setattr(torch.backends.cuda, "SDPAParams", Described)
    monkeypatch.setattr(torch.backends.cuda, "can_use_flash_attention", lambda described: not described.refused)
    assert flash_works(torch.device("cpu"), torch.bfloat16, 64)


def planned_visibility(queries, keys, plan, context):
    """Return visibility [Q, K] (boolean) as given by each segment's kernel and mask."""
    seen = torch.zeros(len(queries), len(keys), dtype=torch.bool)
    for segment in plan.segments:
        (first, last), (start, end) = segment.queries, segment.keys
        sinks = min(segment.sinks, start)
        columns = torch.cat([torch.arange(sinks), torch.arange(start, end)])
        if segment.mask is Mask.NONE:
            rows = torch.ones(1, end - start, dtype=torch.bool)
        elif segment.mask in (Mask.CAUSAL, Mask.LOWER_RIGHT):
            rows = torch.ones(last - first, end - start, dtype=torch.bool).tril(end - start - (last - first))
        elif segment.mask is Mask.BANDED:
            # The equal blocks themselves are checked through model outputs.
            rows = visibility_mask(queries, keys, replace(segment, mask=Mask.EXPLICIT))
        else:
            rows = context.mask(segment, plan, torch.zeros(1)) == 0
        seen[first:last, columns] = rows
    return seen


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("attention_pass", PASSES)
def test_segments_cover_all_queries_with_exact_visibility(attention_pass, name):
    queries, keys, window, local_window = PASSES[attention_pass]
    context = PositionContext(queries, keys, local_window=local_window)
    plan = context.plan(window, DEVICES[name])
    ends = [0, *(segment.queries[1] for segment in plan.segments)]
    assert [segment.queries[0] for segment in plan.segments] == ends[:-1]
    assert ends[-1] == len(queries)
    expected = visibility(queries, keys, window, local_window)
    assert torch.equal(planned_visibility(queries, keys, plan, context), expected)


# The other devices have the plans of one of these, or of the CPU itself.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["sm_80", "sm_75"])
@pytest.mark.parametrize("architecture", ["llama", "mistral", "gemma3"])
def test_plans_of_all_devices_give_the_same_logits(architecture, name, monkeypatch):
    """Run the plans of other devices on the CPU; only the kernel choice on those devices stays untested."""
    model = build_model(architecture)
    ids = torch.randint(3, 8_000, (300,), generator=torch.Generator().manual_seed(0))
    positions = torch.arange(300) + (torch.arange(300) > 120) * 50

    def outputs():
        full, state = prefill(model, ids, positions, 1_000)
        recomputed = recompute(model, ids[50:290:3], torch.arange(50, 290, 3), state)
        chunked, _ = prefill(model, ids, positions, 90)
        local, _ = prefill(model, ids, torch.arange(300), 170, local_window=LocalWindow(64, 280), state=new_state())
        return torch.stack([full, recomputed, chunked, local])

    expected = outputs()
    monkeypatch.setattr(attention, "device_capabilities", lambda *_: DEVICES[name])
    torch.testing.assert_close(outputs(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("queries", [1, 300, QUERY_BLOCK, 2_500])
def test_trailing_segments_share_one_exact_mask(queries):
    """Gapped keys, as after a sparse prefill, and fewer queries than keys."""
    positions = torch.arange(3_000)[torch.arange(3_000) % 7 != 3]
    context = PositionContext(positions[-queries:], positions)
    plan = context.plan(None, DEVICES["cpu"])
    for segment in plan.segments:
        if segment.mask is Mask.TRAILING:
            mask = context.mask(segment, plan, torch.zeros(1))
            assert torch.equal(mask == 0, visibility_mask(positions[-queries:], positions, segment))
            assert torch.equal(mask.exp(), (mask == 0).float())
    assert sum(mask.numel() for mask in context.masks.values()) <= QUERY_BLOCK * len(positions)


def test_query_blocks_shrink_as_keys_grow():
    assert query_block_size(1_000) == query_block_size(16_384) == QUERY_BLOCK
    assert query_block_size(131_072) == QUERY_BLOCK // 8
    assert query_block_size(10**9) == 1

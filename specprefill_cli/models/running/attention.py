"""Attention by position: the function that loaded models run instead of transformers' own.

Under a local window each block of queries sees the attention sinks and the keys of its own part of the band below the
diagonal. All blocks share a mask and attend as a batch: that is faster than a call for each.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from transformers import AttentionInterface, AttentionMaskInterface

from specprefill_cli.models.running.attention_plan import AttentionDevice, AttentionPlan, Mask, Segment, band_block_size
from specprefill_cli.models.running.passes import PositionContext, SequenceMetadata

ATTENTION = "specprefill"
# Most queries whose heads a CPU computes together.
FEW_QUERIES = 16


class LayerReached(Exception):
    """Raised inside attention to end a pass where nothing above a layer's queries, keys and values is needed."""


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    sequences: Sequence[SequenceMetadata] = (),
    last_layer: int | None = None,
    **options: object,
) -> tuple[Tensor, None]:
    """Attention of the sequences of a pass, by position. Each sequence's new keys and values go to its own cache.

    query [1, heads, Q, d], key and value [1, kv_heads, Q, d] -> [1, Q, heads, d]
    sequences: in order, with all tokens of the pass; last_layer: whose queries and keys end the pass (None: run to the end)

    Raises ValueError for a variant of attention that it does not compute.
    """
    unsupported = [name for name in ("softcap", "s_aux", "position_bias") if options.get(name) is not None]
    if not sequences or attention_mask is not None or unsupported:
        raise ValueError(f"specprefill's attention needs positions, and no mask or {', '.join(unsupported) or 'bias'}")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer, device = module.layer_idx, device_capabilities(query.device, query.dtype, query.shape[-1])
    plans = [sequence.plan(sliding_window, device) for sequence in sequences]
    outputs, states = list[Tensor](), (query, key, value)
    for sequence, plan in zip(sequences, plans, strict=True):
        queries, new_keys, new_values = states if len(plans) == 1 else [part[:, :, sequence.span] for part in states]
        # Update directly before reading: sequences about the same document take turns in its buffer.
        keys, values = sequence.state.cache.update(new_keys, new_values, layer)
        sequence.capture_queries(layer, queries, scaling)
        if last_layer != layer:
            outputs += (attend_segment(queries, keys, values, part, plan, sequence, scaling) for part in plan.segments)
    if not outputs:
        raise LayerReached
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
    return output.transpose(1, 2), None


def attend_segment(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    segment: Segment,
    plan: AttentionPlan,
    context: PositionContext,
    scaling: float,
) -> Tensor:
    """Attention [1, heads, N, d] of the N queries of a segment."""
    first, last = segment.queries
    query = query[:, :, first:last]
    if segment.mask is Mask.BANDED and segment.window is not None:
        # [1, heads, Q, d] -> [blocks, heads, block, d]
        query = query[0].unflatten(1, (-1, band_block_size(segment.window))).transpose(0, 1)
        key, value = (key_bands(states, *segment.keys, segment.window, segment.sinks) for states in (key, value))
    else:
        key, value = select_states(key, segment), select_states(value, segment)
    if plan.expand_kv_heads and (groups := query.shape[1] // key.shape[1]) > 1:
        # Each once for every query head that reads it.
        key, value = (states.repeat_interleave(groups, 1) for states in (key, value))
    mask: Any = None
    if segment.mask is Mask.LOWER_RIGHT:
        mask = causal_lower_right(last - first, key.shape[2])
    elif segment.mask not in (Mask.NONE, Mask.CAUSAL):
        mask = context.mask(segment, plan, query)
    is_causal, queries = segment.mask is Mask.CAUSAL, query
    if last - first <= FEW_QUERIES and query.device.type == "cpu" and not is_causal:
        queries = group_heads(query, key)
        mask = mask if mask is None else mask.repeat(queries.shape[2] // (last - first), 1)
    is_grouped = queries.shape[1] != key.shape[1]
    output = F.scaled_dot_product_attention(
        queries, key, value, attn_mask=mask, is_causal=is_causal, scale=scaling, enable_gqa=is_grouped
    )
    # [blocks, heads, block, d] -> [1, heads, Q, d]
    return output.transpose(0, 1).flatten(1, 2)[None] if segment.mask is Mask.BANDED else output.reshape(query.shape)


def group_heads(query: Tensor, key: Tensor) -> Tensor:
    """Queries [1, heads, Q, d] as [1, kv_heads, groups * Q, d]: heads that read the same keys as queries of one head.

    A CPU multiplies a single row in bfloat16 up to 14 times more slowly than some together.
    """
    return query.reshape(1, key.shape[1], -1, query.shape[-1])


def select_states(states: Tensor, segment: Segment) -> Tensor:
    """Keys or values [1, kv_heads, K, d] in the slots that a segment reads: sinks before its keys, then its keys."""
    start, end = segment.keys
    if (start, end) == (0, states.shape[2]):
        return states
    sinks = min(segment.sinks, start)
    return torch.cat([states[:, :, :sinks], states[:, :, start:end]], dim=2) if sinks else states[:, :, start:end]


def key_bands(states: Tensor, start: int, end: int, window: int, sinks: int) -> Tensor:
    """Keys or values [1, kv_heads, K, d] of the slots [start, end) as [blocks, kv_heads, sinks + band, d]."""
    size = band_block_size(window)
    windows = states[0, :, start:end].unfold(1, window + size, size).permute(1, 0, 3, 2)
    return torch.cat([states[:, :, :sinks].expand(len(windows), -1, -1, -1), windows], dim=2)


@lru_cache(maxsize=64)
def device_capabilities(device: torch.device, dtype: torch.dtype, head_size: int) -> AttentionDevice:
    """The capabilities of a device, for the planner; if it should have flash attention, ask torch once."""
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    described = AttentionDevice(kind=device.type, dtype=dtype, head_size=head_size, capability=capability)
    if described.has_flash and not flash_works(device, dtype, head_size):
        return replace(described, flash_works=False)
    return described


def avoid_cudnn(device_type: str) -> None:
    """Turn off cuDNN's attention before a model is placed on an NVIDIA GPU.

    cuDNN builds a plan for every new pair of lengths, and in decoding every token makes a new pair.
    """
    if device_type == "cuda" and torch.version.hip is None:
        torch.backends.cuda.enable_cudnn_sdp(False)


AttentionInterface.register(ATTENTION, attend)
# Without it, transformers would build a mask.
AttentionMaskInterface.register(ATTENTION, lambda *_args, **_options: None)


def flash_works(device: torch.device, dtype: torch.dtype, head_size: int) -> bool:
    """Whether flash attention takes grouped heads and fewer queries than keys on a CUDA device; ROCm's is not used."""
    query, key = (torch.empty(1, *shape, head_size, device=device, dtype=dtype) for shape in ((4, 5), (2, 9)))
    # `is_causal` is False: torch refuses it for fewer queries than keys, and the lower-right bias does not set it.
    described = torch.backends.cuda.SDPAParams(query, key, key, None, 0.0, False, True)
    return torch.version.hip is None and torch.backends.cuda.can_use_flash_attention(described)

"""Attention by position: the function that loaded models run instead of transformers' own.

transformers derives causality from the place of a token in the cache and sliding windows from cache slots. After a
sparse prefill neither holds, so everything here is masked by position.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from packaging.version import Version
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from transformers import AttentionInterface, AttentionMaskInterface

from specprefill_cli.models.local_attention import band_mask, banded_queries, bands, joined, query_bands
from specprefill_cli.models.masks import SINKS, PositionContext, block_mask, query_blocks, trailing_mask

ATTENTION = "specprefill"
# The first torch whose fused attention on a CPU reads grouped keys.
GROUPED_ON_CPU = Version(torch.__version__) >= Version("2.9")


@dataclass
class QueryCapture:
    """Keeps the queries of chosen tokens as attention sees them: after q-norm and rotary embedding.

    wanted:  token indices in the prompt whose queries are kept, ascending
    queries: per layer index, tensors [heads, rows, head_size], in the order of the tokens
    scaling: per layer index, the factor that the layer puts on query-key products
    """

    wanted: Tensor
    queries: dict[int, list[Tensor]] = field(default_factory=dict)
    scaling: dict[int, float] = field(default_factory=dict)

    def keep(self, module: torch.nn.Module, queries: Tensor, rows: Tensor, scaling: float) -> None:
        layer = module.layer_idx
        self.queries.setdefault(layer, []).append(queries[0].index_select(1, rows))
        self.scaling[layer] = scaling

    def layer(self, number: int) -> Tensor:
        """All kept queries of a layer: [heads, rows, head_size]."""
        return torch.cat(self.queries[number], dim=1)


class LayerReached(Exception):
    """Raised inside attention to end a pass, or one run of its last layer, when keys and values are all that is wanted."""


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    context: PositionContext | None = None,
    **others: object,
) -> tuple[Tensor, None]:
    """Attention by position: query [1, heads, Q, d], key and value [1, kv_heads, K, d] -> [1, Q, heads, d].

    Raises ValueError for a variant of attention that it does not compute.
    """
    unknown = [name for name in ("softcap", "s_aux", "position_bias") if others.get(name) is not None]
    if context is None or attention_mask is not None or unknown:
        raise ValueError(f"specprefill's attention needs positions, and no mask or {', '.join(unknown) or 'bias'}")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    if context.capture is not None and context.rows is not None and len(context.rows):
        context.capture.keep(module, query, context.rows_on(query.device), scaling)
    if context.last_layer == module.layer_idx:
        raise LayerReached
    length, total = query.shape[2], key.shape[2]
    if not reads_groups(query.device.type):
        key, value = repeated(query, key, value)
    window = sliding_window if sliding_window is not None and context.largest_distance >= sliding_window else None
    local = context.local_queries
    at_once = length == 1 or (length == total and query.device.type != "mps")
    if window is None and not local and at_once and context.reads_everything:
        if length > 1 and query.is_cuda and not flash_attends(query):
            key, value = repeated(query, key, value)
        grouped = query.shape[1] != key.shape[1]
        mixed = F.scaled_dot_product_attention(
            query, key, value, is_causal=length > 1, scale=scaling, enable_gqa=grouped
        )
        return mixed.transpose(1, 2), None
    if window is None and not local and query.is_cuda:
        if context.trailing and flash_attends(query):
            return trailing_attention(query, key, value, scaling).transpose(1, 2), None
        # Once, not for each block.
        key, value = repeated(query, key, value)
    first, end = banded_queries(context) if window is None or (local and context.local.window < window) else (0, 0)
    tensors = query, key, value
    mixed = [attend_block(*tensors, block, context, window, scaling) for block in query_blocks(context, 0, first)]
    if end:
        mixed.append(attend_band(*tensors, (first, end), context, scaling))
    mixed += [attend_block(*tensors, block, context, window, scaling) for block in query_blocks(context, end, length)]
    return torch.cat(mixed, dim=2).transpose(1, 2), None


def attend_block(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    block: tuple[int, int],
    context: PositionContext,
    window: int | None,
    scaling: float,
) -> Tensor:
    """Attention [1, heads, N, d] of the block of queries [first, last), under a mask of its own or one cut out.

    window: of the layer, in positions, where it has one that matters here
    """
    first, last = block
    reach, sinks = window, 0
    if first < context.local_queries and (window is None or context.local.window < window):
        reach, sinks = context.local.window, SINKS
    seen = context.visible_keys(first, last, reach)
    if reach is None and context.trailing:
        mask = trailing_mask(context, first, last, query)
    else:
        mask = block_mask(context, first, last, seen, reach, query, sinks)
    keys, values = (with_sinks(states, seen, sinks) for states in (key, value))
    return masked_attention(query[:, :, first:last], keys, values, mask, scaling)


def attend_band(
    query: Tensor, key: Tensor, value: Tensor, band: tuple[int, int], context: PositionContext, scaling: float
) -> Tensor:
    """Attention [1, heads, N, d] of the queries [first, last) that read locally, all blocks in one call."""
    first, last = band
    before = key.shape[2] - query.shape[2]
    reach = context.local.window
    keys, values = (bands(states, before + first, before + last, reach) for states in (key, value))
    mask = band_mask(reach, query)
    return joined(masked_attention(query_bands(query[:, :, first:last], reach), keys, values, mask, scaling))


def with_sinks(states: Tensor, seen: slice, sinks: int) -> Tensor:
    """Keys or values [1, kv_heads, K, d] that a block sees: the first `sinks` before those of its window."""
    before = min(sinks, seen.start)
    return torch.cat([states[:, :, :before], states[:, :, seen]], dim=2) if before else states[:, :, seen]


def masked_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float) -> Tensor:
    """Attention [B, heads, Q, d] of query under a mask [Q, K] that is added to scores; key and value [B, kv_heads, K, d]."""
    if query.is_cuda:
        key, value = repeated(query, key, value)
    grouped = query.shape[1] != key.shape[1]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling, enable_gqa=grouped)


def repeated(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Key and value [B, heads, K, d], each once for every query head that reads it.

    Of CUDA's fused kernels only flash attention, which takes no mask, reads grouped ones; else all scores are built at once.
    """
    groups = query.shape[1] // key.shape[1]
    return (key, value) if groups == 1 else (key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1))


def reads_groups(device_type: str) -> bool:
    """Whether a device's attention takes fewer heads of keys than of queries: on Apple's GPUs not, nor on a CPU with an
    older torch, which would build all scores.
    """
    return device_type != "mps" and (device_type != "cpu" or GROUPED_ON_CPU)


def flash_attends(query: Tensor) -> bool:
    """Whether flash attention runs on a CUDA tensor: half precision on a card of the Ampere generation or later."""
    half = query.dtype in (torch.float16, torch.bfloat16)
    fits = query.shape[-1] <= 256 and query.shape[-1] % 8 == 0
    return half and fits and torch.cuda.get_device_capability(query.device) >= (8, 0)


def trailing_attention(query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    """Attention [1, heads, Q, d] of a cache's last tokens: for them causality by slot is causality by position.

    No mask is built where flash attention takes the bias as a flag.
    """
    bias = causal_lower_right(query.shape[2], key.shape[2])
    grouped = query.shape[1] != key.shape[1]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scaling, enable_gqa=grouped)


def no_mask(*_: object, **__: object) -> None:
    """Registered with the attention function, so that transformers builds no mask for it."""


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, no_mask)

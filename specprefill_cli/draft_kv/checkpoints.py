"""Checkpoint tokens: computed by the target although their KV is mapped, to estimate how wrong the mapped KV is.

The estimate is the error of the attention output for every layer and checkpoint token, 0 where mapped KV is the
target's own. Above the first layer it rests on mapped KV itself.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from specprefill_cli.models.running.cache import KvCacheState
from specprefill_cli.models.running.passes import QueryCapture
from specprefill_cli.prefill.importance import layer_attention

# Document tokens per regular checkpoint: 1.6 % are checkpoints.
STRIDE = 64
# Share of the document's tokens that are checkpoints because they matter most.
IMPORTANT_SHARE = 0.004


def checkpoint_slots(document: tuple[int, int], importance: Tensor) -> Tensor:
    """Checkpoint tokens [C], ascending: every 64th of the document, and the most important [n]."""
    start, end = document
    regular = torch.arange(min(start + STRIDE // 2, end), end, STRIDE)
    count = max(1, int(IMPORTANT_SHARE * (end - start)))
    return torch.unique(torch.cat([regular, start + importance.topk(min(count, end - start)).indices]))


@dataclass(frozen=True)
class SlotKv:
    """Copies of some slots of a cache: per layer, keys and values [kv_heads, C, head_size]."""

    slots: Tensor
    layers: tuple[tuple[Tensor, Tensor], ...]


def copy_slots(state: KvCacheState, slots: Tensor) -> SlotKv:
    """Copy slots [C] of every layer."""
    parts = ((layer.keys[0], layer.values[0]) for layer in state.layers)
    chosen = ((keys[:, slots.to(keys.device)], values[:, slots.to(keys.device)]) for keys, values in parts)
    return SlotKv(slots, tuple(chosen))


def relative_errors(pairs: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Relative squared errors [pairs, C] of (mapped, native) tensors [heads, C, d]; float32 on the CPU."""
    rows = []
    for mapped, native in pairs:
        error = (mapped.float() - native.float()).square().sum((0, 2))
        rows.append((error / native.float().square().sum((0, 2)).clamp(min=1e-12)).cpu())
    return torch.stack(rows)


def attention_output_error(
    mapped: SlotKv, computed: SlotKv, queries: QueryCapture, windows: Sequence[int | None], tokens: Tensor
) -> Tensor:
    """Relative squared error [layers, N] of the attention output at the checkpoint nearest to each token [N]."""
    output = partial(causal_output, queries)
    pairs = ((output(layer, mapped, window), output(layer, computed, window)) for layer, window in enumerate(windows))
    return nearest_errors(relative_errors(pairs), mapped.slots, tokens)


def causal_output(queries: QueryCapture, layer: int, kv: SlotKv, window: int | None) -> Tensor:
    """Attention output [heads, C, d] of the captured queries over the KV of the same C tokens, at their positions.

    Only over these tokens, because the target's own KV is unknown elsewhere: C x C, and fused.
    """
    keys, values = kv.layers[layer]
    visible = None
    if window is not None:
        distance = kv.slots[:, None] - kv.slots[None]
        visible = ((distance >= 0) & (distance < window)).to(keys.device)
    return F.scaled_dot_product_attention(
        queries.layer(layer)[None],
        keys[None],
        values[None],
        attn_mask=visible,
        is_causal=visible is None,
        scale=queries.scaling[layer],
        enable_gqa=True,
    )[0]


def nearest_errors(errors: Tensor, slots: Tensor, tokens: Tensor) -> Tensor:
    """The error [layers, N] of the checkpoint nearest to each token [N]: errors [layers, C] at slots [C], ascending."""
    following = torch.searchsorted(slots, tokens).clamp(max=len(slots) - 1)
    preceding = (following - 1).clamp(min=0)
    nearest = torch.where((tokens - slots[preceding]).abs() <= (slots[following] - tokens).abs(), preceding, following)
    return errors[:, nearest]


def attention_mass(
    state: KvCacheState, capture: QueryCapture, document: tuple[int, int], windows: Sequence[int | None]
) -> Tensor:
    """Share of the captured queries' attention [layers, n] to each document token, pooled like importance."""
    heads = [range(len(capture.layer(layer))) for layer in range(len(windows))]
    parts = (layer_attention(state, capture, n, heads[n], document, window) for n, window in enumerate(windows))
    return torch.stack([part.mean(0) for part in parts])

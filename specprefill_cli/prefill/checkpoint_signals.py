"""What checkpoint tokens say about mapped KV: three signals, each a number for every layer and checkpoint token.

All of them are semi-exact: above the first layer, what the target computes at a checkpoint token rests on mapped KV.
Each is 0 where mapped KV is the target's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from specprefill_cli.distributed.ranks import ALONE, Ranks
from specprefill_cli.models.adapter import window_layers
from specprefill_cli.models.query_capture import QueryCapture
from specprefill_cli.models.raw_kv import after_attention
from specprefill_cli.prefill.checkpoints import SlotKv, key_value_errors

KV_ERROR, ATTENTION_OUTPUT, HIDDEN_STATE = SIGNALS = ("kv_error", "attention_output", "hidden_state")


@dataclass(frozen=True, kw_only=True)
class CheckpointPass:
    """What the target's pass over the checkpoint tokens leaves.

    mapped, computed: their KV before and after it; queries: theirs, where the signal compares attention
    states: by layer, the hidden states [C, hidden_size] that enter it, where the signal compares them
    """

    mapped: SlotKv
    computed: SlotKv
    queries: QueryCapture
    states: Sequence[Tensor] = ()


def signal_errors(name: str, model: PreTrainedModel, seen: CheckpointPass, ranks: Ranks = ALONE) -> Tensor:
    """A signal at the checkpoint tokens: [layers, C], float32 on the CPU.

    name: KV_ERROR: relative squared error of keys and of values, their mean; ATTENTION_OUTPUT: relative squared error
    of the attention output; HIDDEN_STATE: 1 - cosine of the hidden states behind attention
    ranks: each holds some of the heads
    """
    if name == KV_ERROR:
        return key_value_errors(seen.mapped, seen.computed, ranks).mean(0)
    windows = window_layers(model.config)
    if name == ATTENTION_OUTPUT:
        return attention_output_error(seen.mapped, seen.computed, seen.queries, windows, ranks)
    rows = []
    for layer, window in enumerate(windows):
        outputs = (causal_output(seen.queries, layer, kv, window) for kv in (seen.mapped, seen.computed))
        mapped, computed = (after_attention(model, layer, seen.states[layer], output).float() for output in outputs)
        rows.append((1 - F.cosine_similarity(mapped, computed, dim=-1)).clamp(min=0).cpu())
    return torch.stack(rows)


def attention_output_error(
    mapped: SlotKv, computed: SlotKv, queries: QueryCapture, windows: Sequence[int | None], ranks: Ranks = ALONE
) -> Tensor:
    """Relative squared error [layers, C] of the attention output at each checkpoint token, with mapped KV.

    windows: per layer, its sliding window, or None; ranks: each holds some of the heads
    """
    rows = []
    for layer, window in enumerate(windows):
        before, after = (causal_output(queries, layer, kv, window).float() for kv in (mapped, computed))
        rows.append(torch.stack([(before - after).square().sum((0, 2)), after.square().sum((0, 2))]).cpu())
    errors, norms = ranks.summed(torch.stack(rows)).unbind(1)
    return errors / norms.clamp(min=1e-12)


def causal_output(queries: QueryCapture, layer: int, kv: SlotKv, window: int | None) -> Tensor:
    """Attention output [heads, C, d] of the captured queries over the KV of the same C tokens, at their positions.

    Over these tokens alone, because the target's own KV is known nowhere else: C x C, and fused.
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

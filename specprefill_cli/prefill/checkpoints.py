"""Checkpoints: tokens that the target computes although their KV came from the draft, to see how wrong it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specprefill_cli.models.cache import PrefillState
from specprefill_cli.models.query_capture import QueryCapture
from specprefill_cli.prefill.scoring_heads import layer_attention

# Document tokens for each regular checkpoint; 1.6 % of them.
STRIDE = 64
# Share of the document's tokens that are checkpoints because they matter most.
IMPORTANT_SHARE = 0.004
# The first tokens of a prompt gather attention from everywhere and are always computed.
ALWAYS_EXACT = 16
Summed = Callable[[Tensor], Tensor]


def checkpoint_slots(document: tuple[int, int], importance: Tensor) -> Tensor:
    """Prompt tokens [C], ascending, that serve as checkpoints: every 64th of the document and its most important ones.

    importance: [n] of the document's tokens
    """
    start, end = document
    regular = torch.arange(min(start + STRIDE // 2, end), end, STRIDE)
    count = max(1, int(IMPORTANT_SHARE * (end - start)))
    return torch.unique(torch.cat([regular, start + importance.topk(min(count, end - start)).indices]))


@dataclass(frozen=True)
class SlotKv:
    """Copies of what a cache holds in some slots: per layer, keys and values [kv_heads, C, head_size]."""

    slots: Tensor
    layers: tuple[tuple[Tensor, Tensor], ...]


def copy_slots(state: PrefillState, slots: Tensor) -> SlotKv:
    layers = tuple(
        tuple(held[0].index_select(1, slots.to(held.device)) for held in (layer.keys, layer.values))
        for layer in state.cache.layers
    )
    return SlotKv(slots, layers)


def alone(values: Tensor) -> Tensor:
    """The sum over ranks where there is one."""
    return values


def key_value_errors(mapped: SlotKv, computed: SlotKv, summed: Summed = alone) -> tuple[Tensor, Tensor]:
    """Relative squared error of mapped keys, and of mapped values: [layers, C] each, float32 on the CPU.

    summed: adds what other ranks found with their heads
    """
    rows = []
    for before, after in zip(mapped.layers, computed.layers, strict=True):
        squares = [
            torch.stack([(old.float() - new.float()).square().sum((0, 2)), new.float().square().sum((0, 2))])
            for old, new in zip(before, after, strict=True)
        ]
        rows.append(torch.stack(squares).cpu())
    wrong, whole = summed(torch.stack(rows)).unbind(2)
    keys, values = (wrong / whole.clamp(min=1e-12)).unbind(1)
    return keys, values


def checkpoint_errors(mapped: SlotKv, computed: SlotKv, summed: Summed = alone) -> Tensor:
    """Relative squared error [layers, C] of mapped keys and values, their mean; float32 on the CPU.

    What was computed is itself only nearly exact: above the first layer its context was mapped.
    summed: adds what other ranks found with their heads
    """
    keys, values = key_value_errors(mapped, computed, summed)
    return (keys + values) / 2


def nearest_errors(errors: Tensor, slots: Tensor, places: Tensor) -> Tensor:
    """The error [layers, N] of the checkpoint nearest to each place [N]: errors [layers, C] at slots [C], ascending."""
    behind = torch.searchsorted(slots, places).clamp(max=len(slots) - 1)
    before = (behind - 1).clamp(min=0)
    nearer = torch.where((places - slots[before]).abs() <= (slots[behind] - places).abs(), before, behind)
    return errors[:, nearer]


def attention_mass(
    state: PrefillState, capture: QueryCapture, document: tuple[int, int], windows: Sequence[int | None]
) -> Tensor:
    """Share of the captured queries' attention [layers, n] that each document token gets, mean over heads and queries.

    Pooled over neighbouring tokens like importance; windows: per layer, its sliding window, or None
    """
    rows = []
    for layer, window in enumerate(windows):
        heads = list(range(capture.layer(layer).shape[0]))
        rows.append(layer_attention(state, capture, layer, heads, document, window).mean(0))
    return torch.stack(rows)


def chunk_risks(mass: Tensor, errors: Tensor, chunk_size: int) -> Tensor:
    """Risk [chunks]: attention mass times error, summed over a chunk's tokens, mean over layers. Both [layers, n]."""
    each = (mass * errors).mean(0)
    padding = -len(each) % chunk_size
    return torch.nn.functional.pad(each, (0, padding)).view(-1, chunk_size).sum(1)

"""Attention of several sequences in one kernel, on CUDA: `torch.nn.attention.varlen`, in recent torch.

It reads the keys of all sequences from one tensor, so they are copied there first.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from specprefill_cli.models.attention_plan import AttentionDevice, AttentionPlan, Mask

# Keys of a sequence, on average, up to which one copy of all costs less than a kernel launch or two for each: calculated
# from the bandwidth of current cards and 10 microseconds, not measured.
MOST_KEYS = 4_096
# Added to the kernel after its first version.
ARGUMENTS = {"scale", "window_size", "enable_gqa"}
# Masks that the kernel has built in: the queries are the last keys.
BUILT_IN = (Mask.NONE, Mask.CAUSAL, Mask.LOWER_RIGHT)


@cache
def varlen_kernel() -> Callable[..., Any] | None:
    """Torch's kernel, or None where this torch has none, or one without the arguments that it needs here."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn if set(inspect.signature(varlen_attn).parameters) >= ARGUMENTS else None


def takes_varlen(device: AttentionDevice, plans: Sequence[AttentionPlan], keys: Sequence[int]) -> bool:
    """Whether one kernel should compute all sequences; keys: how many each has."""
    if device.kind != "cuda" or not device.has_flash or len(plans) < 2 or varlen_kernel() is None:
        return False
    plain = all(len(plan.segments) == 1 and plan.segments[0].mask in BUILT_IN for plan in plans)
    return plain and sum(keys) <= MOST_KEYS * len(keys)


def attend_varlen(
    query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], lengths: Sequence[int], scaling: float
) -> Tensor:
    """Attention [1, heads, Q, d] of sequences with so many queries each, which are the last of their keys.

    query: [1, heads, Q, d] of all sequences; keys, values: of each [1, kv_heads, K, d]
    """
    kernel = varlen_kernel()
    assert kernel is not None, "`takes_varlen` was asked first"
    counts = [states.shape[2] for states in keys]
    edges = (edges_of(tuple(sizes), query.device) for sizes in (lengths, counts))
    output: Tensor = kernel(
        by_token(query),
        by_token(torch.cat([*keys], dim=2)),
        by_token(torch.cat([*values], dim=2)),
        *edges,
        max(lengths),
        max(counts),
        scale=scaling,
        # Causal, aligned with the last key.
        window_size=(-1, 0),
        enable_gqa=query.shape[1] != keys[0].shape[1],
    )
    return output.transpose(0, 1)[None]


@lru_cache(maxsize=16)
def edges_of(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """Where each sequence begins and the last one ends [n + 1]; one copy to the device for all layers of a pass."""
    return torch.tensor([*accumulate(sizes, initial=0)], dtype=torch.int32, device=device)


def by_token(states: Tensor) -> Tensor:
    """[1, heads, N, d] -> [N, heads, d]."""
    return states[0].transpose(0, 1)

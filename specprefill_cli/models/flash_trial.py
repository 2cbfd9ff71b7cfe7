"""Whether flash attention on a GPU does what plans expect of it, tried once on a few numbers.

A causal flag means the lower right in one library and the upper left in another where there are more keys than queries.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

# Queries and keys of the trial, query heads and key-value heads.
QUERIES, KEYS, HEADS, GROUPS = 5, 9, 4, 2
# Largest difference that rounding to half precision explains; another alignment gives about 1.
TOLERANCE = 0.05


def flash_works(device: torch.device, dtype: torch.dtype, head_size: int) -> bool:
    """Whether flash attention takes grouped heads and a lower-right causal bias on a CUDA device, and computes it."""
    query, key, value = trial(device, dtype, head_size)
    # Not as causal: torch refuses that flag for fewer queries than keys, and the lower-right bias does not set it.
    described = torch.backends.cuda.SDPAParams(query, key, value, None, 0.0, False, True)
    accepted = torch.backends.cuda.can_use_flash_attention(described)
    return accepted and is_lower_right(F.scaled_dot_product_attention, device, dtype, head_size)


def is_lower_right(attend: Callable[..., Tensor], device: torch.device, dtype: torch.dtype, head_size: int) -> bool:
    """Whether an attention function lets the last query see all keys, and each one before it one key less."""
    query, key, value = trial(device, dtype, head_size)
    output = attend(query, key, value, attn_mask=causal_lower_right(QUERIES, KEYS), enable_gqa=True)
    visible = torch.ones(QUERIES, KEYS, dtype=torch.bool, device=device).tril(KEYS - QUERIES)
    keys, values = (states.float().repeat_interleave(HEADS // GROUPS, 1) for states in (key, value))
    scores = (query.float() @ keys.transpose(2, 3)) * head_size**-0.5
    expected = scores.masked_fill(~visible, -torch.inf).softmax(-1) @ values
    return bool((output.float() - expected).abs().max() < TOLERANCE)


def trial(device: torch.device, dtype: torch.dtype, head_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random queries [1, HEADS, QUERIES, d], keys and values [1, GROUPS, KEYS, d]."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((HEADS, QUERIES), (GROUPS, KEYS), (GROUPS, KEYS))
    query, key, value = (torch.randn(1, *shape, head_size, generator=generator).to(device, dtype) for shape in shapes)
    return query, key, value

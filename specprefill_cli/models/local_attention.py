"""Attention under a local window, many queries in one call: the band below the diagonal, cut into equal blocks.

Each block of queries sees the attention sinks and the keys of its own part of the band. All blocks share one mask and
attend as one batch, which is faster than a call for each.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specprefill_cli.models.attention_plan import band_block


def key_bands(states: Tensor, start: int, end: int, window: int, sinks: int) -> Tensor:
    """Keys or values [1, kv_heads, K, d] of the slots [start, end) as [blocks, kv_heads, sinks + band, d]."""
    size = band_block(window)
    windows = states[0, :, start:end].unfold(1, window + size, size).permute(1, 0, 3, 2)
    first = states[:, :, :sinks].expand(len(windows), -1, -1, -1)
    return torch.cat([first, windows], dim=2)


def query_blocks(queries: Tensor, window: int) -> Tensor:
    """Queries [1, heads, Q, d], whole blocks of them, as [blocks, heads, block, d]."""
    _, heads, _, size = queries.shape
    return queries[0].reshape(heads, -1, band_block(window), size).transpose(0, 1)


def join_blocks(outputs: Tensor) -> Tensor:
    """[blocks, heads, block, d] -> [1, heads, Q, d]."""
    blocks, heads, block, size = outputs.shape
    return outputs.transpose(0, 1).reshape(1, heads, blocks * block, size)


def band_visibility(window: int, sinks: int) -> Tensor:
    """Boolean [block, sinks + band], the same for every block: a query sees the sinks and the `window` keys up to its own."""
    size = band_block(window)
    queries = torch.arange(window, window + size)[:, None]
    keys = torch.arange(window + size)[None]
    near = (keys <= queries) & (keys > queries - window)
    return torch.cat([near.new_ones(size, sinks), near], dim=1)

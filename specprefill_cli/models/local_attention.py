"""Local reading of many queries in one call: the band below the diagonal, cut into blocks that look alike.

Each block of queries sees the prompt's first tokens and the keys of its own band. Where positions have no gaps, all
blocks of a pass have one shape and one mask, and attend as one batch: a call for each would cost more than its sums.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specprefill_cli.models.masks import SINKS, PositionContext, additive

# Queries of a block. Small blocks see few keys in vain (a quarter, with blocks of a quarter window) but copy keys more
# often; below 64 products are too thin (measured with a window of 256: 3.0 ms for 64, 3.9 ms for 256).
SMALLEST_BLOCK = 64


def block_size(window: int) -> int:
    return max(SMALLEST_BLOCK, window // 4)


def banded_queries(context: PositionContext) -> tuple[int, int]:
    """The range of a pass's queries that can attend as one batch; (0, 0) where there is none.

    Those whose window reaches neither the sinks nor beyond the local part, in whole blocks; none at all where
    positions have gaps.
    """
    if not context.local_queries or not context.trailing or not context.consecutive:
        return 0, 0
    before = len(context.key_positions) - len(context.query_positions)
    first = max(0, context.local.window + SINKS - before)
    size = block_size(context.local.window)
    count = max(0, context.local_queries - first) // size * size
    return (first, first + count) if count else (0, 0)


def bands(states: Tensor, start: int, end: int, window: int) -> Tensor:
    """Keys or values [1, kv_heads, K, d] of the blocks of slots [start, end): [blocks, kv_heads, sinks and band, d]."""
    size = block_size(window)
    windows = states[0, :, start - window : end].unfold(1, window + size, size).permute(1, 0, 3, 2)
    sinks = states[:, :, :SINKS].expand(len(windows), -1, -1, -1)
    return torch.cat([sinks, windows], dim=2)


def query_bands(queries: Tensor, window: int) -> Tensor:
    """Queries [1, heads, Q, d], whole blocks of them, as [blocks, heads, block, d]."""
    _, heads, _, size = queries.shape
    return queries[0].reshape(heads, -1, block_size(window), size).transpose(0, 1)


def joined(mixed: Tensor) -> Tensor:
    """[blocks, heads, block, d] -> [1, heads, Q, d]."""
    blocks, heads, block, size = mixed.shape
    return mixed.transpose(0, 1).reshape(1, heads, blocks * block, size)


def band_mask(window: int, like: Tensor) -> Tensor:
    """The mask [block, sinks and band] of every block: it sees the sinks, and of its band the `window` keys up to the query.

    like: what it is added to has its dtype and device
    """
    size = block_size(window)
    queries = torch.arange(window, window + size)[:, None]
    keys = torch.arange(window + size)[None]
    near = (keys <= queries) & (keys > queries - window)
    return additive(torch.cat([near.new_ones(size, SINKS), near], dim=1), like)

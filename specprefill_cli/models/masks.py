"""Masks by position: who sees whom in one pass, in blocks that stay small beside the prompt's length squared."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from specprefill_cli.models.adapter import QueryCapture

# Queries a masked attention call handles at once, and the most elements of its mask: torch makes a float of each, so
# that 2**26 are 256 MiB in float32.
QUERY_BLOCK = 1_024
MASK_ELEMENTS = 2**26


@dataclass
class PositionContext:
    """What our attention function must know of one forward pass.

    query_positions, key_positions: [Q] and [K] absolute positions on the CPU, ascending; the queries' own are among
        the keys'
    capture, rows: where to keep queries, and which rows of this pass (None: keep none)
    last_layer: the layer whose queries and keys end the pass (None: run to the end)
    masks: those built so far, because layers of one kind need the same
    """

    query_positions: Tensor
    key_positions: Tensor
    capture: QueryCapture | None = None
    rows: Tensor | None = None
    last_layer: int | None = None
    masks: dict[tuple, Tensor] = field(default_factory=dict)

    @cached_property
    def largest_distance(self) -> int:
        """Positions from the first key to the last query."""
        return int(self.query_positions[-1] - self.key_positions[0])

    @cached_property
    def trailing(self) -> bool:
        """Whether the queries are the keys' last ones, all of them: not tokens computed anew in the middle of a cache."""
        return torch.equal(self.query_positions, self.key_positions[-len(self.query_positions) :])

    @property
    def reads_everything(self) -> bool:
        """Whether the last query is the last key, so that causality by slot is causality by position where all of the
        cache is read at once, or by one query."""
        return bool(self.query_positions[-1] == self.key_positions[-1])

    def visible_keys(self, first: int, last: int, window: int | None) -> slice:
        """The keys that one of the queries [first, last) can see."""
        end = int(torch.searchsorted(self.key_positions, self.query_positions[last - 1], right=True))
        if window is None:
            return slice(0, end)
        oldest = self.query_positions[first] - window + 1
        return slice(int(torch.searchsorted(self.key_positions, oldest)), end)


def block_mask(
    context: PositionContext, first: int, last: int, seen: slice, window: int | None, device: torch.device
) -> Tensor:
    """The mask [last - first, seen] of a block of queries, built once a pass for each kind of layer and device."""
    key = (first, last, window, device)
    if key not in context.masks:
        mask = position_mask(context.query_positions[first:last], context.key_positions[seen], window)
        context.masks[key] = mask.to(device)
    return context.masks[key]


def query_block(keys: int) -> int:
    """Queries of one attention call with a mask over `keys` keys."""
    return max(1, min(QUERY_BLOCK, MASK_ELEMENTS // keys))


def trailing_mask(context: PositionContext, first: int, last: int, device: torch.device) -> Tensor:
    """The mask [last - first, seen] of a block of trailing queries without a window, cut out of one for the whole pass.

    Each query sees all keys up to its own. The blocks' masks thus end in the same stairs, and differ only in how many
    keys lie before them: one mask [block, K] holds them all, where one for each block would together be a pass x K.
    """
    total, length = len(context.key_positions), len(context.query_positions)
    key = ("trailing", device)
    if key not in context.masks:
        rows = min(query_block(total), length)
        context.masks[key] = torch.ones(rows, total, dtype=torch.bool, device=device).tril(total - rows)
    shared = context.masks[key]
    return shared[len(shared) - (last - first) :, length - last :]


def position_mask(query_positions: Tensor, key_positions: Tensor, window: int | None) -> Tensor:
    """Boolean [Q, K]: a key is seen when it is not later than the query, and inside the window counted in positions."""
    seen = key_positions[None] <= query_positions[:, None]
    return seen if window is None else seen & (key_positions[None] > query_positions[:, None] - window)

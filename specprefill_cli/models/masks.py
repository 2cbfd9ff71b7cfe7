"""Masks by position: who sees whom in one pass, in blocks that stay small beside the prompt's length squared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from specprefill_cli.models.attention import QueryCapture

# Queries that a masked attention call handles at once: the cache's last ones, and others, whose blocks see the fewer keys
# in vain the narrower they are (1,200 of 8,000 tokens: 446 ms in blocks of 1,024, 316 ms in blocks of 128).
QUERY_BLOCK = 1_024
SCATTERED_BLOCK = 128
# The most elements of one mask, 64 MiB in float32, and of all that a pass keeps for its other layers.
MASK_ELEMENTS, KEPT_ELEMENTS = 2**24, 2**26
# What CUDA's fused attention loads of a mask at once.
VECTOR_BYTES = 16
# Tokens at the prompt's start that local reading always sees: models park attention there (arXiv 2309.17453).
SINKS = 16


@dataclass(frozen=True)
class LocalReading:
    """Reading a document without looking far back, for a draft that only has to find passages.

    A token before position `until` sees the `window` positions up to its own and the prompt's first SINKS; those from
    `until` on, the question's, see everything. Costs grow linearly with the document. An approximation: layers above
    the first get other states than full attention would give them.
    """

    window: int
    until: int


@dataclass
class PositionContext:
    """What our attention function must know of one forward pass.

    query_positions, key_positions: [Q] and [K] absolute positions on the CPU, ascending; the queries' own are among
        the keys'
    capture, rows: where to keep queries, and which rows of this pass (None: keep none)
    last_layer: the layer whose queries and keys end the pass (None: run to the end)
    local: how far back a document's tokens see (None: to the start)
    masks, places: masks built so far, because layers of one kind need the same, and the positions on each device
    """

    query_positions: Tensor
    key_positions: Tensor
    capture: QueryCapture | None = None
    rows: Tensor | None = None
    last_layer: int | None = None
    local: LocalReading | None = None
    masks: dict[tuple, Tensor] = field(default_factory=dict)
    places: dict[torch.device, tuple[Tensor, Tensor]] = field(default_factory=dict)
    moved_rows: dict[torch.device, Tensor] = field(default_factory=dict)

    def rows_on(self, device: torch.device) -> Tensor:
        """The captured rows there: moved once a pass, because each copy waits for the device."""
        if device not in self.moved_rows:
            self.moved_rows[device] = self.rows.to(device)
        return self.moved_rows[device]

    def positions_on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Query and key positions on a device: masks are compared where they are used, not carried there."""
        if device not in self.places:
            self.places[device] = self.query_positions.to(device), self.key_positions.to(device)
        return self.places[device]

    @cached_property
    def largest_distance(self) -> int:
        """Positions from the first key to the last query."""
        return int(self.query_positions[-1] - self.key_positions[0])

    @cached_property
    def local_queries(self) -> int:
        """How many of the queries, the first ones, read locally; 0 where the window reaches everything they see."""
        if self.local is None:
            return 0
        count = int(torch.searchsorted(self.query_positions, self.local.until))
        reach = int(self.query_positions[count - 1] - self.key_positions[0]) if count else 0
        return count if reach >= self.local.window else 0

    @cached_property
    def trailing(self) -> bool:
        """Whether the queries are the keys' last ones, all of them: not tokens computed anew in the middle of a cache."""
        return torch.equal(self.query_positions, self.key_positions[-len(self.query_positions) :])

    @cached_property
    def consecutive(self) -> bool:
        """Whether the keys are those of a prompt's first tokens, all of them."""
        return int(self.key_positions[-1]) + 1 == len(self.key_positions)

    @property
    def reads_everything(self) -> bool:
        """Whether the last query is the last key, so that causality by slot is causality by position where all of the
        cache is read at once, or by one query.
        """
        return bool(self.query_positions[-1] == self.key_positions[-1])

    def visible_keys(self, first: int, last: int, window: int | None) -> slice:
        """The keys that one of the queries [first, last) can see."""
        end = int(torch.searchsorted(self.key_positions, self.query_positions[last - 1], right=True))
        if window is None:
            return slice(0, end)
        oldest = self.query_positions[first] - window + 1
        return slice(int(torch.searchsorted(self.key_positions, oldest)), end)


def block_mask(
    context: PositionContext,
    first: int,
    last: int,
    seen: slice,
    window: int | None,
    like: Tensor,
    sinks: int = 0,
) -> Tensor:
    """The mask [last - first, sinks and seen] of a block of queries, in the dtype and on the device of `like`.

    Built once a pass for each kind of layer and device, as far as KEPT_ELEMENTS allow to keep it.

    sinks: first slots that are seen whatever the window
    """
    key = (first, last, window, sinks, like.device)
    if key in context.masks:
        return context.masks[key]
    before = min(sinks, seen.start)
    asking, all_keys = context.positions_on(like.device)
    places = torch.cat([all_keys[:before], all_keys[seen]])
    visible = position_mask(asking[first:last], places, window, sinks)
    mask = additive(visible, like)
    if mask.numel() + sum(kept.numel() for kept in context.masks.values()) <= KEPT_ELEMENTS:
        context.masks[key] = mask
    return mask


def additive(visible: Tensor, like: Tensor) -> Tensor:
    """A boolean mask as what attention adds to scores: 0 or minus infinity, in the dtype and on the device of `like`.

    torch would make the same of it in every layer.
    """
    mask = torch.zeros(visible.shape, dtype=like.dtype, device=like.device)
    return mask.masked_fill_(~visible.to(like.device), float("-inf"))


def query_blocks(context: PositionContext, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Blocks of the queries [first, last) that attend together: those that read locally by their window, then the others."""
    local, size = context.local_queries, query_block(len(context.key_positions))
    size = size if context.trailing else min(size, SCATTERED_BLOCK)
    # Narrower blocks see fewer keys in vain, but each costs a call.
    narrow = max(128, min(context.local.window, size)) if local else size
    for begin, end, step in ((first, min(local, last), narrow), (max(first, local), last, size)):
        for start in range(begin, end, step):
            yield start, min(start + step, end)


def query_block(keys: int) -> int:
    """Queries of one attention call with a mask over `keys` keys."""
    return max(1, min(QUERY_BLOCK, MASK_ELEMENTS // keys))


def trailing_mask(context: PositionContext, first: int, last: int, like: Tensor) -> Tensor:
    """The mask [last - first, seen] of a block of trailing queries without a window, cut out of one for the whole pass.

    Each query sees all keys up to its own. The blocks' masks thus end in the same stairs, and differ only in how many
    keys lie before them: one mask [block, K] holds them all, where one for each block would together be a pass x K.
    """
    total, length = len(context.key_positions), len(context.query_positions)
    key = ("trailing", like.device)
    if key not in context.masks:
        # Those that read locally have masks of their own.
        rows = min(query_block(total), length - context.local_queries)
        later = torch.full((rows, total), float("-inf"), dtype=like.dtype, device=like.device)
        context.masks[key] = later.triu_(total - rows + 1)
    shared = context.masks[key]
    cut = shared[len(shared) - (last - first) :, length - last :]
    # CUDA's kernels want a mask that begins at a whole vector.
    return cut.contiguous() if cut.is_cuda and cut.storage_offset() * cut.element_size() % VECTOR_BYTES else cut


def position_mask(query_positions: Tensor, key_positions: Tensor, window: int | None, sinks: int = 0) -> Tensor:
    """Boolean [Q, K]: a key is seen when it is not later than the query, and inside the window counted in positions.

    sinks: how many of the keys, the first ones, are seen from beyond the window
    """
    seen = key_positions[None] <= query_positions[:, None]
    if window is None:
        return seen
    near = key_positions[None] > query_positions[:, None] - window
    near[:, :sinks] = True
    return seen & near

"""The context of attention in one forward pass, and the tensors that its segments share: masks, and blocks of a band.

Under a local window each block of queries sees the attention sinks and the keys of its own part of the band below the
diagonal. All blocks share one mask and attend as one batch: that is faster than a call for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specprefill_cli.models.attention_plan import (
    AttentionDevice,
    AttentionPlan,
    LocalWindow,
    Mask,
    Segment,
    band_block_size,
    plan_attention,
)
from specprefill_cli.models.cache import PrefillState, copied_to
from specprefill_cli.models.query_capture import QueryCapture

# Elements of all masks that a pass keeps for its other layers, at most.
KEPT_ELEMENTS = 2**26
# Bytes of a mask that CUDA's fused attention loads at once.
VECTOR_BYTES = 16


@dataclass
class PositionContext:
    """One forward pass, as attention sees it.

    query_positions, key_positions: [Q] and [K] absolute positions on the CPU, ascending; the queries' own are among
        the keys'
    capture: keeps queries; rows: those of this pass that it keeps (None: none)
    local_window: limits what the document's tokens see (None: all before them)

    Plans, masks and copies of positions on each device are made once a pass: layers of one kind share them.
    """

    query_positions: Tensor
    key_positions: Tensor
    capture: QueryCapture | None = None
    rows: Tensor | None = None
    local_window: LocalWindow | None = None
    plans: dict[tuple[int | None, AttentionDevice], AttentionPlan] = field(default_factory=dict, init=False)
    masks: dict[tuple[Segment | Mask, torch.device], Tensor] = field(default_factory=dict, init=False)
    copies: dict[tuple[str, torch.device], Tensor] = field(default_factory=dict, init=False)

    def plan(self, window: int | None, device: AttentionDevice) -> AttentionPlan:
        """The plan for layers with a sliding window (None: without) on such a device."""
        key = (window, device)
        if key not in self.plans:
            self.plans[key] = plan_attention(
                self.query_positions, self.key_positions, device, window, self.local_window
            )
        return self.plans[key]

    def capture_queries(self, layer: int, queries: Tensor, scaling: float) -> None:
        """Keep what the capture asks for of a layer's queries [1, heads, Q, d]."""
        if self.capture is None or self.rows is None or not len(self.rows):
            return
        self.capture.keep(layer, queries, self.copy_field("rows", queries.device), scaling)

    def copy_field(self, name: str, device: torch.device) -> Tensor:
        """The tensor in a field, on a device; copied once a pass."""
        if (name, device) not in self.copies:
            self.copies[name, device] = copied_to(getattr(self, name), device)
        return self.copies[name, device]

    def mask(self, segment: Segment, plan: AttentionPlan, like: Tensor) -> Tensor:
        """The mask [queries, keys] of a TRAILING, EXPLICIT or BANDED segment, in the dtype and on the device of `like`."""
        if segment.mask is Mask.TRAILING:
            return self.trailing_mask(segment, plan, like)
        key = (segment, like.device)
        if key in self.masks:
            return self.masks[key]
        if segment.mask is Mask.BANDED and segment.window is not None:
            mask = to_additive_mask(band_visibility(segment.window, segment.sinks), like)
        else:
            queries, keys = (self.copy_field(name, like.device) for name in ("query_positions", "key_positions"))
            mask = to_additive_mask(visibility_mask(queries, keys, segment), like)
        if mask.numel() + sum(kept.numel() for kept in self.masks.values()) <= KEPT_ELEMENTS:
            self.masks[key] = mask
        return mask

    def trailing_mask(self, segment: Segment, plan: AttentionPlan, like: Tensor) -> Tensor:
        """The mask of a TRAILING segment, cut out of one for the whole pass.

        The masks of all blocks end in the same triangle and differ only in how many keys lie before it: one mask
        [block, K] holds them all, where one for each block would together be [Q, K].
        """
        total, length = len(self.key_positions), len(self.query_positions)
        key = (Mask.TRAILING, like.device)
        if key not in self.masks:
            later = torch.full((plan.trailing_rows, total), float("-inf"), dtype=like.dtype, device=like.device)
            self.masks[key] = later.triu_(total - plan.trailing_rows + 1)
        shared, (first, last) = self.masks[key], segment.queries
        cut = shared[len(shared) - (last - first) :, length - last :]
        # CUDA's kernels need a mask that begins at a whole vector.
        return cut.contiguous() if cut.is_cuda and cut.storage_offset() * cut.element_size() % VECTOR_BYTES else cut


@dataclass(frozen=True, kw_only=True)
class PackedSequence:
    """One sequence of a packed pass: its tokens, its cache, and how attention sees it."""

    span: slice
    state: PrefillState
    context: PositionContext


@dataclass(frozen=True)
class PackedContext:
    """A pass over one or several sequences, in order, that together have all its tokens.

    last_layer: the layer whose queries and keys end the pass (None: run to the end)
    """

    sequences: Sequence[PackedSequence]
    last_layer: int | None = None


def visibility_mask(query_positions: Tensor, key_positions: Tensor, segment: Segment) -> Tensor:
    """Boolean [queries, sinks and keys] of a segment: a key is seen when it is not later, and inside the window or a sink."""
    (first, last), (start, end) = segment.queries, segment.keys
    queries = query_positions[first:last, None]
    keys = torch.cat([key_positions[: min(segment.sinks, start)], key_positions[start:end]])[None]
    seen = keys <= queries
    if segment.window is None:
        return seen
    near = keys > queries - segment.window
    near[:, : segment.sinks] = True
    return seen & near


def to_additive_mask(visible: Tensor, like: Tensor) -> Tensor:
    """A boolean mask as what attention adds to scores: 0 or minus infinity; torch would convert it in every layer."""
    mask = torch.zeros(visible.shape, dtype=like.dtype, device=like.device)
    return mask.masked_fill_(~visible.to(like.device), float("-inf"))


def key_bands(states: Tensor, start: int, end: int, window: int, sinks: int) -> Tensor:
    """Keys or values [1, kv_heads, K, d] of the slots [start, end) as [blocks, kv_heads, sinks + band, d]."""
    size = band_block_size(window)
    windows = states[0, :, start:end].unfold(1, window + size, size).permute(1, 0, 3, 2)
    first = states[:, :, :sinks].expand(len(windows), -1, -1, -1)
    return torch.cat([first, windows], dim=2)


def query_blocks(queries: Tensor, window: int) -> Tensor:
    """Queries [1, heads, Q, d], whole blocks of them, as [blocks, heads, block, d]."""
    _, heads, _, size = queries.shape
    return queries[0].reshape(heads, -1, band_block_size(window), size).transpose(0, 1)


def join_blocks(outputs: Tensor) -> Tensor:
    """[blocks, heads, block, d] -> [1, heads, Q, d]."""
    blocks, heads, block, size = outputs.shape
    return outputs.transpose(0, 1).reshape(1, heads, blocks * block, size)


def band_visibility(window: int, sinks: int) -> Tensor:
    """Boolean [block, sinks + band], the same for every block: a query sees the sinks and the `window` keys up to its own."""
    size = band_block_size(window)
    queries = torch.arange(window, window + size)[:, None]
    keys = torch.arange(window + size)[None]
    near = (keys <= queries) & (keys > queries - window)
    return torch.cat([near.new_ones(size, sinks), near], dim=1)

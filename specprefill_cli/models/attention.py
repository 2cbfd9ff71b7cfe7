"""Attention by position: the function that loaded models run instead of transformers' own.

transformers derives causality from the place of a token in the cache and sliding windows from cache slots. After a
sparse prefill neither holds, so everything here is masked by position.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

ATTENTION = "specprefill"
# Queries a masked attention call handles at once: bounds its mask to QUERY_BLOCK x keys.
QUERY_BLOCK = 1_024
# Tokens at the prompt's start that local reading always sees: models park attention there (arXiv 2309.17453).
SINKS = 16


@dataclass
class QueryCapture:
    """Keeps the queries of chosen tokens as attention sees them: after q-norm and rotary embedding.

    wanted:  token indices in the prompt whose queries are kept, ascending
    queries: per layer index, tensors [heads, rows, head_size], in the order of the tokens
    scaling: per layer index, the factor that the layer puts on query-key products
    """

    wanted: Tensor
    queries: dict[int, list[Tensor]] = field(default_factory=dict)
    scaling: dict[int, float] = field(default_factory=dict)

    def keep(self, module: torch.nn.Module, queries: Tensor, rows: Tensor, scaling: float) -> None:
        layer = module.layer_idx
        self.queries.setdefault(layer, []).append(queries[0].index_select(1, rows.to(queries.device)))
        self.scaling[layer] = scaling

    def layer(self, number: int) -> Tensor:
        """All kept queries of a layer: [heads, rows, head_size]."""
        return torch.cat(self.queries[number], dim=1)


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
    masks: those built so far, because layers of one kind need the same
    """

    query_positions: Tensor
    key_positions: Tensor
    capture: QueryCapture | None = None
    rows: Tensor | None = None
    last_layer: int | None = None
    local: LocalReading | None = None
    masks: dict[tuple, Tensor] = field(default_factory=dict)

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

    @property
    def reads_everything(self) -> bool:
        """Whether the queries are the keys' last ones, so that causality by slot is causality by position."""
        return bool(self.query_positions[-1] == self.key_positions[-1])

    def visible_keys(self, first: int, last: int, window: int | None) -> slice:
        """The keys that one of the queries [first, last) can see."""
        end = int(torch.searchsorted(self.key_positions, self.query_positions[last - 1], right=True))
        if window is None:
            return slice(0, end)
        oldest = self.query_positions[first] - window + 1
        return slice(int(torch.searchsorted(self.key_positions, oldest)), end)


def block_mask(
    context: PositionContext, first: int, last: int, seen: slice, window: int | None, sinks: int, device: torch.device
) -> Tensor:
    """The mask [last - first, sinks and seen] of a block of queries, built once a pass for each kind of layer and device.

    sinks: first slots that are seen whatever the window
    """
    key = (first, last, window, sinks, device)
    if key not in context.masks:
        before = min(sinks, seen.start)
        places = torch.cat([context.key_positions[:before], context.key_positions[seen]])
        mask = position_mask(context.query_positions[first:last], places, window, max(before, sinks - seen.start))
        context.masks[key] = mask.to(device)
    return context.masks[key]


class LayerReached(Exception):
    """Raised inside attention to end a pass whose upper layers nobody needs."""


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    context: PositionContext | None = None,
    **others: object,
) -> tuple[Tensor, None]:
    """Attention by position: query [1, heads, Q, d], key and value [1, kv_heads, K, d] -> [1, Q, heads, d].

    Raises ValueError for a variant of attention that it does not compute.
    """
    unknown = [name for name in ("softcap", "s_aux", "position_bias") if others.get(name) is not None]
    if context is None or attention_mask is not None or unknown:
        raise ValueError(f"specprefill's attention needs positions, and no mask or {', '.join(unknown) or 'bias'}")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    if context.capture is not None and context.rows is not None and len(context.rows):
        context.capture.keep(module, query, context.rows, scaling)
    if context.last_layer == module.layer_idx:
        raise LayerReached
    length, total = query.shape[2], key.shape[2]
    window = sliding_window if sliding_window is not None and context.largest_distance >= sliding_window else None
    local = context.local_queries
    if window is None and not local and length in (1, total) and context.reads_everything:
        grouped = query.shape[1] != key.shape[1]
        mixed = F.scaled_dot_product_attention(
            query, key, value, is_causal=length > 1, scale=scaling, enable_gqa=grouped
        )
        return mixed.transpose(1, 2), None
    blocks = []
    for first, last in query_blocks(local, length, context.local):
        reach, sinks = window, 0
        if first < local and (window is None or context.local.window < window):
            reach = context.local.window
            sinks = SINKS
        seen = context.visible_keys(first, last, reach)
        mask = block_mask(context, first, last, seen, reach, sinks, query.device)
        keys, values = (with_sinks(states, seen, sinks) for states in (key, value))
        blocks.append(masked_attention(query[:, :, first:last], keys, values, mask, scaling))
    return torch.cat(blocks, dim=2).transpose(1, 2), None


def query_blocks(local: int, length: int, reading: LocalReading | None) -> Iterator[tuple[int, int]]:
    """Blocks of queries that attend together: the `local` first ones in blocks of about their window, then the others."""
    # Narrower blocks see fewer keys in vain, but each costs a call.
    size = max(128, min(reading.window, QUERY_BLOCK)) if reading is not None else QUERY_BLOCK
    for start, end, step in ((0, local, size), (local, length, QUERY_BLOCK)):
        for first in range(start, end, step):
            yield first, min(first + step, end)


def with_sinks(states: Tensor, seen: slice, sinks: int) -> Tensor:
    """Keys or values [1, kv_heads, K, d] that a block sees: the first `sinks` before those of its window."""
    before = min(sinks, seen.start)
    return torch.cat([states[:, :, :before], states[:, :, seen]], dim=2) if before else states[:, :, seen]


def masked_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float) -> Tensor:
    """Attention [1, heads, Q, d] under a boolean mask [Q, K]."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1 and query.is_cuda:
        # With a mask, CUDA has no fused kernel for grouped keys and would build all scores at once.
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    grouped = query.shape[1] != key.shape[1]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling, enable_gqa=grouped)


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


def no_mask(*_: object, **__: object) -> None:
    """Registered with the attention function, so that transformers builds no mask for it."""


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, no_mask)

"""The plan of an attention call: which queries read which keys, under which mask; and the mask's tensor.

transformers derives causality from a token's place in the cache, and sliding windows from cache slots. After a sparse
prefill neither holds, so everything is planned from positions.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

import torch
from torch import Tensor

# Queries of a call with a mask: for a cache's last tokens, and for scattered ones, where narrow blocks read fewer keys.
QUERY_BLOCK, SCATTERED_BLOCK = 1_024, 128
# Elements of a mask at most: 64 MiB in float32.
MASK_ELEMENTS = 2**24
# Tokens at the prompt's start that a local window always sees: attention sinks (arXiv 2309.17453).
SINKS = 16
# Fewest queries in a block of a band: with fewer, matrix products get too thin.
SMALLEST_BAND_BLOCK = 64
# The first GPUs with flash attention (Ampere), and its largest head.
FLASH_CAPABILITY, FLASH_HEAD_SIZE = (8, 0), 256


@dataclass(frozen=True)
class LocalWindow:
    """A narrow view of the document, for a draft that only finds passages: costs grow linearly.

    A token before position `until` sees the `size` positions up to its own and the prompt's first SINKS; tokens from
    `until` on (the suffix) see everything.
    """

    size: int
    until: int


@dataclass(frozen=True, kw_only=True)
class AttentionDevice:
    """Properties of a device that decide between fused attention kernels.

    kind: "cpu" or "cuda" (ROCm too); capability: of a CUDA device, such as (9, 0)
    flash_works: whether flash attention takes grouped heads and a lower-right causal bias, as tried on the device
    """

    kind: str
    dtype: torch.dtype
    head_size: int
    capability: tuple[int, int] | None = None
    flash_works: bool = True

    @property
    def has_flash(self) -> bool:
        """Whether CUDA's flash attention runs: in half precision, from the Ampere generation on."""
        half = self.dtype in (torch.float16, torch.bfloat16)
        fits = self.head_size <= FLASH_HEAD_SIZE and self.head_size % 8 == 0
        return half and fits and self.flash_works and (self.capability or (0, 0)) >= FLASH_CAPABILITY


class Mask(Enum):
    """How a segment's queries are kept from keys that they must not see."""

    # A single query that sees all keys.
    NONE = auto()
    # Queries and keys are the same tokens: the kernel's causal flag.
    CAUSAL = auto()
    # The queries are the last keys: a bias that flash attention takes as a flag.
    LOWER_RIGHT = auto()
    # LOWER_RIGHT as a tensor, cut from a mask that all segments of the pass share.
    TRAILING = auto()
    # A tensor for this segment, compared by position.
    EXPLICIT = auto()
    # Blocks of queries with a local window each: a single batch, and a small tensor for all.
    BANDED = auto()


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Consecutive queries that attend in the same call.

    queries: [first, last) of the pass; keys: [start, end) of the cache's slots
    window: positions up to its own that a query sees (None: all); sinks: first slots, always seen
    """

    queries: tuple[int, int]
    keys: tuple[int, int]
    mask: Mask
    window: int | None = None
    sinks: int = 0


@dataclass(frozen=True)
class AttentionPlan:
    """Segments of a pass's queries; expand_kv_heads: whether key-value heads are repeated for each query head."""

    segments: tuple[Segment, ...]
    expand_kv_heads: bool


def plan_attention(
    queries: Tensor, keys: Tensor, device: AttentionDevice, window: int | None, local_window: LocalWindow | None
) -> AttentionPlan:
    """Plan attention of queries [Q] over keys [K], ascending positions on the CPU, Q among K. window: the layer's."""
    if window is not None and int(queries[-1] - keys[0]) < window:
        window = None
    limited = count_limited_queries(queries, keys, local_window)
    trailing = torch.equal(queries, keys[-len(queries) :])
    is_plain = trailing and window is None and not limited
    mask = choose_fused_mask(len(queries), len(keys), device) if is_plain else None
    if mask is not None:
        segments: tuple[Segment, ...] = (Segment(queries=(0, len(queries)), keys=(0, len(keys)), mask=mask),)
    else:
        segments = tuple(plan_masked_segments(queries, keys, window, local_window, limited, trailing))
    return AttentionPlan(segments, expand_kv_heads(mask, device))


def choose_fused_mask(queries: int, keys: int, device: AttentionDevice) -> Mask | None:
    """The mask of a cache's last tokens if the device has a kernel that needs no tensor for it, else None."""
    if queries == 1:
        return Mask.NONE
    if queries == keys:
        return Mask.CAUSAL
    return Mask.LOWER_RIGHT if device.has_flash else None


def expand_kv_heads(mask: Mask | None, device: AttentionDevice) -> bool:
    """Whether key-value heads must be repeated; mask: of the whole pass, or None for segments with tensors.

    Of CUDA's fused kernels only flash attention reads grouped heads, and it takes no mask tensor.
    """
    grouped = mask in (Mask.NONE, Mask.LOWER_RIGHT) or (mask is Mask.CAUSAL and device.has_flash)
    return device.kind == "cuda" and not grouped


def count_limited_queries(queries: Tensor, keys: Tensor, local_window: LocalWindow | None) -> int:
    """How many of the queries, from the first on, a local window limits; 0 where it covers all that they see."""
    if local_window is None:
        return 0
    count = int(torch.searchsorted(queries, local_window.until))
    reach = int(queries[count - 1] - keys[0]) if count else 0
    return count if reach >= local_window.size else 0


def plan_masked_segments(
    queries: Tensor, keys: Tensor, window: int | None, local_window: LocalWindow | None, limited: int, trailing: bool
) -> Iterator[Segment]:
    """Segments under mask tensors, in order, so short that a mask stays small beside the prompt's length squared."""
    size = query_block_size(len(keys)) if trailing else min(query_block_size(len(keys)), SCATTERED_BLOCK)
    limited_size, local_size, band = size, None, None
    if local_window is not None and limited:
        # Narrower blocks read fewer unneeded keys, but each costs a call.
        limited_size = max(128, min(local_window.size, size))
        if window is None or local_window.size < window:
            local_size = local_window.size
            band = plan_band(queries, keys, local_size, limited) if trailing else None

    def blocks(start: int, stop: int, step: int, reach: int | None, sinks: int = 0) -> Iterator[Segment]:
        mask = Mask.TRAILING if reach is None and trailing else Mask.EXPLICIT
        for first in range(start, stop, step):
            last = min(first + step, stop)
            begin = 0 if reach is None else int(torch.searchsorted(keys, queries[first] - reach + 1))
            end = int(torch.searchsorted(keys, queries[last - 1], right=True))
            yield Segment(queries=(first, last), keys=(begin, end), mask=mask, window=reach, sinks=sinks)

    local_view = (local_size, SINKS) if local_size is not None else (window, 0)
    if band is not None:
        yield from blocks(0, band.queries[0], limited_size, *local_view)
        yield band
    yield from blocks(band.queries[1] if band is not None else 0, limited, limited_size, *local_view)
    yield from blocks(limited, len(queries), size, window)


def query_block_size(keys: int) -> int:
    """Queries of an attention call with a mask over `keys` keys."""
    return max(1, min(QUERY_BLOCK, MASK_ELEMENTS // keys))


def plan_band(queries: Tensor, keys: Tensor, window: int, limited: int) -> Segment | None:
    """The queries, in whole blocks, whose windows begin after the sinks; None without any, or with gaps."""
    if int(keys[-1]) + 1 != len(keys):
        return None
    past = len(keys) - len(queries)
    first = max(0, window + SINKS - past)
    size = band_block_size(window)
    last = first + max(0, limited - first) // size * size
    if last == first:
        return None
    slots = past + first - window, past + last
    return Segment(queries=(first, last), keys=slots, mask=Mask.BANDED, window=window, sinks=SINKS)


def band_block_size(window: int) -> int:
    """Queries of a block of a band: a quarter of the window, so that only a quarter more keys are read than a query sees."""
    return max(SMALLEST_BAND_BLOCK, window // 4)


def visibility_mask(query_positions: Tensor, key_positions: Tensor, segment: Segment) -> Tensor:
    """Boolean [queries, sinks and keys] of a segment: a key is seen when it is not later, and inside the window or a sink.

    For a BANDED segment it is the mask of a block: all blocks have the same.
    """
    (first, last), (start, end) = segment.queries, segment.keys
    if segment.mask is Mask.BANDED and segment.window is not None:
        block = band_block_size(segment.window)
        last, end = first + block, start + segment.window + block
    queries = query_positions[first:last, None]
    keys = torch.cat([key_positions[: min(segment.sinks, start)], key_positions[start:end]])[None]
    seen = keys <= queries
    if segment.window is None:
        return seen
    near = keys > queries - segment.window
    near[:, : segment.sinks] = True
    return seen & near

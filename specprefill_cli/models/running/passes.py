"""A forward pass: as a value, so that the engine can pack passes of several answers, and as attention sees it."""

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specprefill_cli.models.running.attention_plan import (
    AttentionDevice,
    AttentionPlan,
    LocalWindow,
    Mask,
    Segment,
    plan_attention,
    visibility_mask,
)
from specprefill_cli.models.running.cache import KvCacheState, copy_to

# Elements of all masks that a pass keeps for its other layers, at most.
KEPT_ELEMENTS = 2**26
# Bytes of a mask that CUDA's fused attention loads at once.
VECTOR_BYTES = 16
Value = TypeVar("Value")


@dataclass
class QueryCapture:
    """Keeps the queries of chosen tokens as attention sees them: after q-norm and rotary embedding.

    positions: indices of the tokens, ascending; those of decoded tokens lie after the prompt
    queries: by layer, tensors [heads, rows, head_size] in the order of tokens; scaling: of its products
    """

    positions: Tensor
    queries: dict[int, list[Tensor]] = field(default_factory=dict)
    scaling: dict[int, float] = field(default_factory=dict)

    def layer(self, number: int) -> Tensor:
        """All kept queries of a layer: [heads, rows, head_size]."""
        return torch.cat(self.queries[number], dim=1)

    def at(self, positions: Tensor) -> "QueryCapture":
        """The kept queries of some of the tokens: positions [C], ascending."""
        rows = torch.isin(self.positions, positions).nonzero()[:, 0]
        chosen = {number: [self.layer(number)[:, rows.to(self.queries[number][0].device)]] for number in self.queries}
        return QueryCapture(positions, chosen, self.scaling)


@dataclass(frozen=True, kw_only=True, eq=False)
class ForwardInput:
    """Tokens [N] at positions [N] for a model to run after those of a state. The state then grows by N.

    capture: keeps queries; last_layer: the pass ends when this layer has its queries, keys and values
    rows: logits of the last `rows` tokens [rows, V]; None: of the last token [V]
    local_window: limits what the document's tokens see (None: all before them)
    announced: a context for the run of the pass; tells other ranks of it
    """

    model: PreTrainedModel
    tokens: Tensor
    positions: Tensor
    state: KvCacheState
    capture: QueryCapture | None = None
    last_layer: int | None = None
    rows: int | None = None
    local_window: LocalWindow | None = None
    announced: Callable[[], AbstractContextManager[None]] = nullcontext


@dataclass(eq=False)
class PositionContext:
    """The tokens of a forward pass, as attention sees them.

    query_positions, key_positions: [Q] and [K] absolute positions on the CPU, ascending, Q among K
    local_window: limits what the document's tokens see (None: all before them)

    Plans, masks and copies of positions on each device are made once a pass: layers of the same kind share them.
    """

    query_positions: Tensor
    key_positions: Tensor
    local_window: LocalWindow | None = None
    plans: dict[tuple[int | None, AttentionDevice], AttentionPlan] = field(default_factory=dict, init=False)
    masks: dict[tuple[Segment | Mask, torch.device], Tensor] = field(default_factory=dict, init=False)
    copies: dict[tuple[str, torch.device], Tensor] = field(default_factory=dict, init=False)

    def plan(self, window: int | None, device: AttentionDevice) -> AttentionPlan:
        """The plan for layers with this sliding window (None: without) on a device."""
        if (window, device) not in self.plans:
            plan = plan_attention(self.query_positions, self.key_positions, device, window, self.local_window)
            self.plans[window, device] = plan
        return self.plans[window, device]

    def copy_field(self, name: str, device: torch.device) -> Tensor:
        """The tensor in a field, on a device; copied once a pass."""
        if (name, device) not in self.copies:
            self.copies[name, device] = copy_to(getattr(self, name), device)
        return self.copies[name, device]

    def mask(self, segment: Segment, plan: AttentionPlan, like: Tensor) -> Tensor:
        """The mask [queries, keys] of a TRAILING, EXPLICIT or BANDED segment, in the dtype and on the device of `like`."""
        if segment.mask is Mask.TRAILING:
            return self.trailing_mask(segment, plan, like)
        key = (segment, like.device)
        if key in self.masks:
            return self.masks[key]
        queries, keys = (self.copy_field(name, like.device) for name in ("query_positions", "key_positions"))
        visible = visibility_mask(queries, keys, segment)
        # An addend of attention scores: torch would convert a boolean mask in every layer.
        mask = torch.zeros(visible.shape, dtype=like.dtype, device=like.device).masked_fill_(~visible, float("-inf"))
        if mask.numel() + sum(kept.numel() for kept in self.masks.values()) <= KEPT_ELEMENTS:
            self.masks[key] = mask
        return mask

    def trailing_mask(self, segment: Segment, plan: AttentionPlan, like: Tensor) -> Tensor:
        """The mask of a TRAILING segment, cut from a single one [block, K]: all end in the same triangle."""
        total, length = len(self.key_positions), len(self.query_positions)
        key = (Mask.TRAILING, like.device)
        if key not in self.masks:
            rows = max(part.queries[1] - part.queries[0] for part in plan.segments if part.mask is Mask.TRAILING)
            later = torch.full((rows, total), float("-inf"), dtype=like.dtype, device=like.device)
            self.masks[key] = later.triu_(total - rows + 1)
        shared, (first, last) = self.masks[key], segment.queries
        cut = shared[len(shared) - (last - first) :, length - last :]
        # CUDA's kernels need a mask that begins at a whole vector.
        return cut.contiguous() if cut.is_cuda and cut.storage_offset() * cut.element_size() % VECTOR_BYTES else cut


@dataclass(eq=False, kw_only=True)
class SequenceMetadata(PositionContext):
    """A sequence of a packed pass.

    span: its tokens among those of the pass; capture: keeps queries; rows: the rows of the pass that it keeps
    """

    span: slice
    state: KvCacheState
    capture: QueryCapture | None = None
    rows: Tensor | None = None

    def capture_queries(self, layer: int, queries: Tensor, scaling: float) -> None:
        """Keep what the capture asks for of a layer's queries [1, heads, Q, d]."""
        if self.capture is not None and self.rows is not None and len(self.rows):
            rows = self.copy_field("rows", queries.device)
            self.capture.queries.setdefault(layer, []).append(queries[0].index_select(1, rows))
            self.capture.scaling[layer] = scaling


# A generator that yields passes, is sent their logits, and returns a value.
ForwardGenerator = Generator[ForwardInput, Tensor, Value]
# Called before each pass of a prefill: here the engine lets other answers go on, and stops a cancelled question.
BEFORE_PASS: ContextVar[Callable[[], None] | None] = ContextVar("before_pass", default=None)


@contextmanager
def before_each_pass(act: Callable[[], None] | None) -> Iterator[None]:
    """Inside the block, call a function before each pass of a prefill. None: for code that watches a model with hooks."""
    token = BEFORE_PASS.set(act)
    try:
        yield
    finally:
        BEFORE_PASS.reset(token)

"""Reading a document in windows, and which windows have their KV kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.cache import HEADROOM, PrefillState, layer_count
from specprefill_cli.models.loading import LoadedModel
from specprefill_cli.models.memory_plan import cache_bytes, free_memory
from specprefill_cli.models.query_capture import QueryCapture
from specprefill_cli.prefill.held_attention import HELD_DTYPE, HeldAttention, hold_attention
from specprefill_cli.prefill.importance import check_finite, pool
from specprefill_cli.prefill.prefix_cache import PrefixCache
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.scorers.windows import Window, combined

if TYPE_CHECKING:
    from specprefill_cli.prefill.scorers.attention import AttentionScorer

# Part of the free main memory that the attention of all windows may take until their common softmax is known.
HELD_SHARE = 0.5
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class WindowReading:
    """One document, read in windows for a scorer.

    layers: whose attention scores; cached: of every reading of a window so far, whether a cache held its KV
    """

    scorer: AttentionScorer
    request: PrefillRequest
    windows: Sequence[Window]
    layers: Sequence[int]
    cached: list[bool] = field(default_factory=list)

    def importance(self) -> Tensor:
        """Importance [n] of the draft's document tokens: one softmax over all windows.

        Each window's attention is held until the normalisers of all windows are known.
        """
        self.check_memory()
        held = self.each_window(self.hold)
        with self.request.clock.phase("scoring"):
            normalisers = combined([part.masses for part in held])
            return check_finite(torch.cat([self.held_importance(part, normalisers) for part in held]))

    def check_memory(self) -> None:
        """Raises SpecprefillError where the attention of all windows would take too much of the free memory."""
        prompt = self.request.draft_prompt
        queries = len(self.scorer.query_tokens(prompt))
        if self.scorer.looks_ahead:
            queries += self.scorer.decoded_queries(self.request.look_ahead)
        heads = sum(map(len, self.scorer.used_heads(self.request, self.layers).values()))
        held = heads * queries * (prompt.document[1] - prompt.document[0]) * HELD_DTYPE.itemsize
        if held > HELD_SHARE * free_memory(torch.device("cpu")):
            raise SpecprefillError(
                f"--scorer {self.scorer.name}: needs {held / 2**30:.1f} GiB of memory for the attention to this document; "
                "use --scorer heads or lexical"
            )

    def held_importance(self, held: HeldAttention, normalisers: Mapping[int, Tensor]) -> Tensor:
        """Importance [core] of a window's core."""
        importance = self.scorer.reduce_heads(self.request, self.layers, held.attention(normalisers))
        if self.scorer.pools_later:
            importance = pool(importance[None, None])[0, 0]
        return importance[held.core]

    def each_window(self, use: Callable[[Window, PrefillRequest, PrefillState, QueryCapture], Result]) -> list[Result]:
        """What a function returns for each window, read one after the other; only results outlive a window."""

        def read(window: Window, prefixes: PrefixCache | None) -> Result:
            part = replace(window.request(self.request), draft_prefixes=prefixes)
            state, capture, cached = self.scorer.prefill(part)
            self.cached.append(cached)
            write_now(prefixes)
            with self.request.clock.phase("scoring"):
                return use(window, part, state, capture)

        outside = self.request.draft_prompt.length - len(self.request.draft_prompt.offsets)
        lengths = [window.end - window.start + outside for window in self.windows]
        used_layers = self.scorer.last_layer(self.windows[0].request(self.request)) + 1
        caches = window_caches(self.request.draft_prefixes, self.request.draft, lengths, used_layers)
        return [read(window, prefixes) for window, prefixes in zip(self.windows, caches, strict=True)]

    def hold(self, window: Window, part: PrefillRequest, state: PrefillState, capture: QueryCapture) -> HeldAttention:
        """The attention of the scorer's heads to a window's core."""
        prompt = part.draft_prompt
        slots = self.scorer.query_slots(prompt, capture, self.layers)
        heads = self.scorer.used_heads(self.request, self.layers)
        pooled = (0, prompt.length) if self.scorer.pools_prompt else prompt.document
        parts, later = window.parts(prompt), self.scorer.pools_later
        return hold_attention(state, capture, slots, prompt.length, parts, pooled, heads, later)


def window_caches(
    prefixes: PrefixCache | None, draft: LoadedModel, lengths: Sequence[int], layers: int
) -> list[PrefixCache | None]:
    """The cache for each window: memory and disk for the first ones, then the disk alone, none beyond its limit too.

    A document larger than a cache must not evict its own windows.

    lengths: tokens of each window's prompt; layers: how many of the draft's layers hold KV
    """
    if prefixes is None:
        return [None] * len(lengths)
    disk = PrefixCache(prefixes.store, capacity_bytes=0)
    disk_bytes = prefixes.store.capacity_bytes if prefixes.store is not None else 0
    caches: list[PrefixCache | None] = []
    used = 0
    for length in lengths:
        used += cache_bytes(draft.config, length + HEADROOM, draft.model.dtype) * layers // layer_count(draft.model)
        fits_disk = disk if used <= disk_bytes else None
        caches.append(prefixes if used <= prefixes.capacity_bytes else fits_disk)
    return caches


def write_now(prefixes: PrefixCache | None) -> None:
    """Write what only the disk keeps, so that no more than one window waits in memory; the rest waits for the answer."""
    if prefixes is not None and not prefixes.capacity_bytes:
        prefixes.write()

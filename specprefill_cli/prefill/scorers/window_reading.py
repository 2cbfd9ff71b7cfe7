"""Reading a document in windows: the draft reads each once where what must be kept of it is small, else twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from specprefill_cli.models.cache import PrefillState
from specprefill_cli.models.query_capture import QueryCapture
from specprefill_cli.prefill.held_attention import HELD_DTYPE, HeldAttention, hold_attention
from specprefill_cli.prefill.importance import check_finite, log_masses, pool
from specprefill_cli.prefill.prefix_cache import PrefixCache
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.scorers.windows import Window, combined
from specprefill_cli.prefill.window_cache import window_caches, write_now

if TYPE_CHECKING:
    from specprefill_cli.prefill.scorers.attention import AttentionScorer

# Memory for the attention of all windows until their common softmax is known; beyond it each window is read twice.
HELD_BYTES = 2**29
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
        """Importance [n] of the draft's document tokens: one softmax over all windows."""
        once = reads(self.scorer, self.request, self.layers) == 1
        return check_finite(self.read_once() if once else self.read_twice())

    def read_once(self) -> Tensor:
        """Hold each window's attention until the normalisers of all windows are known."""
        held = self.each_window(self.hold)
        with self.request.clock.phase("scoring"):
            normalisers = combined([part.masses for part in held])
            return torch.cat([self.held_importance(part, normalisers) for part in held])

    def held_importance(self, held: HeldAttention, normalisers: Mapping[int, Tensor]) -> Tensor:
        """Importance [core] of a window's core."""
        importance = self.scorer.reduce_heads(self.request, self.layers, held.attention(normalisers))
        if self.scorer.pools_later:
            importance = pool(importance[None, None])[0, 0]
        return importance[held.core]

    def read_twice(self) -> Tensor:
        """First the sums of exponential scores, then importance by the normalisers of all windows."""
        normalisers = combined(self.each_window(self.masses))
        return torch.cat(self.each_window(partial(self.core_importance, normalisers=normalisers)))

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

    def masses(
        self, window: Window, part: PrefillRequest, state: PrefillState, capture: QueryCapture
    ) -> dict[int, Tensor]:
        """For each layer [2, heads, Q]: logarithms of the sums of exponential scores over `Window.parts`."""
        prompt = part.draft_prompt
        slots = self.scorer.query_slots(prompt, capture, self.layers)
        return log_masses(state, capture, slots, prompt.length, window.parts(prompt), self.layers)

    def core_importance(
        self,
        window: Window,
        part: PrefillRequest,
        state: PrefillState,
        capture: QueryCapture,
        normalisers: Mapping[int, Tensor],
    ) -> Tensor:
        """Importance [core] of a window's core by the normalisers {layer: [heads, Q]} of all windows."""
        shared = capture.first(normalisers[self.layers[0]].shape[-1])
        importance = self.scorer.reduce(part, state, shared, self.layers, normalisers)
        # A copy, so that the rest of the window is freed.
        return importance[window.core[0] - window.start : window.core[1] - window.start].clone()


def reads(scorer: AttentionScorer, request: PrefillRequest, layers: Sequence[int]) -> int:
    """How often each window is read: once where the attention of all windows takes at most HELD_BYTES.

    Ranks that share the draft read twice: each holds the attention of its own heads alone.
    """
    if request.pair.draft_ranks.size > 1:
        return 2
    prompt = request.draft_prompt
    queries = len(scorer.query_tokens(prompt))
    if scorer.looks_ahead:
        queries += scorer.decoded_queries(request.look_ahead)
    heads = sum(map(len, scorer.used_heads(request, layers).values()))
    tokens = prompt.document[1] - prompt.document[0]
    return 1 if heads * queries * tokens * HELD_DTYPE.itemsize <= HELD_BYTES else 2

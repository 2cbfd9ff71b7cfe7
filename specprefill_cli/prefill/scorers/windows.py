"""Documents that the draft cannot read at once: each window is a prompt of its own, and one softmax covers all of them.

The attention of each window is held until the normalisers of all are known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.adapter import rotation_depends_on_length
from specprefill_cli.models.cache import HEADROOM, PrefillState, copied_to, layer_count, layer_keys
from specprefill_cli.models.loading import LoadedModel
from specprefill_cli.models.memory_plan import cache_bytes, free_memory
from specprefill_cli.models.query_capture import QueryCapture
from specprefill_cli.prefill.importance import check_finite, group_scores, pool, query_slices
from specprefill_cli.prefill.prefix_cache import PrefixCache
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prompting import Prompt

if TYPE_CHECKING:
    from specprefill_cli.prefill.scorers.attention import AttentionScorer

# Tokens that neighbouring windows share, at most: half of them give the tokens at an edge something to look back at.
OVERLAP = 512
# Share of the draft's context that a window takes; the rest is for the distance between it and the question.
CONTEXT_SHARE = 0.5
# Part of the free main memory that the attention of all windows may take until their common softmax is known.
HELD_SHARE = 0.5
# float16 would lose what unimportant tokens get: all of it where another token of the window gets nearly everything.
HELD_DTYPE = torch.bfloat16


@dataclass(frozen=True, kw_only=True)
class Window:
    """Document tokens [start, end) that are read together; the importance of those in `core` is taken from here.

    Cores divide the document. gap: positions left free before the suffix, so that the question stands as far behind a
    token as in the whole prompt, or as the draft's context allows: attention depends on that distance
    """

    start: int
    end: int
    core: tuple[int, int]
    gap: int

    def prompt(self, whole: Prompt) -> Prompt:
        """The prompt that holds only this part of the document."""
        first, last = whole.document
        cut = last - first - (self.end - self.start)
        tokens = (whole.tokens[:first], whole.tokens[first + self.start : first + self.end], whole.tokens[last:])
        return Prompt(
            tokens=torch.cat(tokens),
            document=(first, last - cut),
            question=(whole.question[0] - cut, whole.question[1] - cut),
            offsets=whole.offsets[self.start : self.end],
        )

    def request(self, whole: PrefillRequest) -> PrefillRequest:
        """The request to score this window. Its KV does not depend on the question, nor on the gap before it."""
        prompt = self.prompt(whole.draft_prompt)
        return replace(whole, draft_prompt=prompt, draft_gap=self.gap, keep_draft_state=False)

    def parts(self, prompt: Prompt) -> tuple[Tensor, Tensor]:
        """Key indices in the window's prompt: of the core, and of prefix and suffix, which every window holds."""
        first, last = prompt.document
        core = torch.arange(first + self.core[0] - self.start, first + self.core[1] - self.start)
        return core, torch.cat([torch.arange(first), torch.arange(last, prompt.length)])


def divide(tokens: int, size: int, room: int) -> tuple[Window, ...]:
    """Windows of about the same size, at most `size`, over a document of that many tokens, in order.

    room: document tokens for which the draft has positions; distances beyond are shortened evenly
    """
    overlap = min(OVERLAP, size // 4)
    count = -(-tokens // (size - overlap)) if tokens > size else 1
    edges = [tokens * number // count for number in range(count + 1)]
    shortening = 1.0 if tokens <= room else max(0, room - size) / (tokens - edges[1])
    return tuple(
        Window(
            start=max(0, first - overlap // 2),
            end=(end := min(tokens, last + overlap // 2)),
            core=(first, last),
            gap=int(shortening * (tokens - end)),
        )
        for first, last in pairwise(edges)
    )


def windows_of(request: PrefillRequest, look_ahead: int) -> tuple[Window, ...]:
    """The windows in which the draft must read a request's document; none where it fits the draft's context whole.

    look_ahead: tokens that the draft decodes behind the prompt
    """
    prompt, draft = request.draft_prompt, request.draft
    if prompt.length + look_ahead <= draft.context:
        return ()
    start, end = prompt.document
    room = draft.context - look_ahead - (prompt.length - (end - start))
    size = min(room, max(request.chunk_size, int(CONTEXT_SHARE * draft.context)))
    # Models whose rotation depends on the length rotate the keys of one cache alike only without a gap.
    return divide(end - start, size, size if rotation_depends_on_length(draft.config) else room)


def one_softmax(masses: Sequence[Tensor]) -> Tensor:
    """Normalisers [heads, Q] of one softmax over the cores of all windows, prefix and suffix.

    masses: of each window [2, heads, Q], logarithms for the parts of `Window.parts`. A window may have fewer look-ahead
    queries: only those that all have count. Prefix and suffix count once, with the mean over windows.
    """
    queries = min(window.shape[-1] for window in masses)
    cores, shared = torch.stack([window[..., :queries] for window in masses], 1).logsumexp(1)
    return torch.logaddexp(cores, shared - torch.tensor(float(len(masses))).log())


@dataclass(frozen=True, kw_only=True)
class HeldAttention:
    """What the queries of a window's prompt give to the tokens of its core, on the CPU, for the scoring heads of all layers.

    weights: [heads, Q, core] of HELD_DTYPE, exponential scores over the largest of each query, pooled
    scales: [heads, Q] the scores whose exponentials were divided out
    masses: [2, heads, Q] logarithms of the sums of exponential scores over core and shared tokens
    """

    weights: Tensor
    scales: Tensor
    masses: Tensor

    def attention(self, normalisers: Tensor) -> Tensor:
        """Attention [heads, Q, core] in float32 by the normalisers [heads, Q] of all windows."""
        queries = normalisers.shape[-1]
        return self.weights[:, :queries].float() * (self.scales[:, :queries] - normalisers).exp()[..., None]


def read_in_windows(scorer: AttentionScorer, request: PrefillRequest, windows: Sequence[Window]) -> tuple[Tensor, bool]:
    """Importance [n] of the draft's document tokens by one softmax over all windows, and whether a cache held one's KV.

    Raises SpecprefillError as `AttentionScorer.layers`, and for a document whose attention does not fit the memory.
    """
    # The first window lies farthest from the question: the layers that reach it there reach it in all.
    first = windows[0].request(request)
    layers = scorer.layers(first)
    heads = scorer.used_heads(request, layers)
    check_memory(scorer, request, heads)
    outside = request.draft_prompt.length - len(request.draft_prompt.offsets)
    lengths = [window.end - window.start + outside for window in windows]
    caches = window_caches(request.draft_prefixes, request.draft, lengths, scorer.last_layer(first) + 1)
    held, reused = [], False
    for window, prefixes in zip(windows, caches, strict=True):
        part = replace(window.request(request), draft_prefixes=prefixes)
        state, capture, cached = scorer.prefill(part)
        reused |= cached
        with request.clock.phase("scoring"):
            prompt = part.draft_prompt
            slots = scorer.query_slots(prompt, capture, layers)
            pooled = (0, prompt.length) if scorer.pools_prompt else prompt.document
            held.append(hold_attention(state, capture, slots, prompt.length, window.parts(prompt), pooled, heads))
    with request.clock.phase("scoring"):
        normalisers = one_softmax([part.masses for part in held])
        parts = [scorer.reduce_heads(request, layers, part.attention(normalisers)) for part in held]
        return check_finite(torch.cat(parts)), reused


def check_memory(scorer: AttentionScorer, request: PrefillRequest, heads: Mapping[int, Sequence[int]]) -> None:
    """Raises SpecprefillError where the attention of all windows would take too much of the free memory."""
    prompt = request.draft_prompt
    queries = len(scorer.query_tokens(prompt)) + scorer.decoded_queries(request.look_ahead)
    held = sum(map(len, heads.values())) * queries * (prompt.document[1] - prompt.document[0]) * HELD_DTYPE.itemsize
    if held > HELD_SHARE * free_memory(torch.device("cpu")):
        raise SpecprefillError(
            f"--scorer {scorer.name}: needs {held / 2**30:.1f} GiB of memory for the attention to this document; "
            "use --scorer heads or lexical"
        )


def hold_attention(
    state: PrefillState,
    capture: QueryCapture,
    positions: Tensor,
    prompt_tokens: int,
    parts: tuple[Tensor, Tensor],
    pooled: tuple[int, int],
    heads: Mapping[int, Sequence[int]],
) -> HeldAttention:
    """The attention of a window's queries, pooled over neighbouring tokens.

    positions: [Q] of the captured queries; parts: key indices of the core, consecutive, and of prefix and suffix
    pooled: range of key indices inside which tokens are neighbours; heads: {layer: attention heads, ascending}
    """
    rows, core = len(positions), slice(int(parts[0][0]), int(parts[0][-1]) + 1)
    count = sum(map(len, heads.values()))
    weights = torch.empty(count, rows, core.stop - core.start, dtype=HELD_DTYPE)
    scales, masses = torch.empty(count, rows), torch.empty(2, count, rows)
    for part in query_slices(state, capture, prompt_tokens, next(iter(heads))):
        first = 0
        for layer, numbers in heads.items():
            groups = []
            outside = copied_to(parts[1], layer_keys(state, layer).device)
            for scores in group_scores(state, capture, layer, part, positions, prompt_tokens, numbers):
                largest = scores.amax(-1, keepdim=True)
                neighbours = pool((scores[..., slice(*pooled)] - largest).exp_())
                weighted = neighbours[..., core.start - pooled[0] : core.stop - pooled[0]].to(HELD_DTYPE)
                sums = [keys.logsumexp(-1) for keys in (scores[..., core], scores.index_select(-1, outside))]
                groups.append((weighted, largest[..., 0], torch.stack(sums, -1)))
            if groups:
                # Copied once a layer, because every copy from a device waits for it.
                weighted, largest, summed = (torch.cat(tensors).cpu() for tensors in zip(*groups, strict=True))
                place = slice(first, first + len(numbers))
                weights[place, part], scales[place, part] = weighted, largest
                masses[:, place, part] = summed.permute(2, 0, 1)
            first += len(numbers)
    return HeldAttention(weights=weights, scales=scales, masses=masses)


def window_caches(
    prefixes: PrefixCache | None, draft: LoadedModel, lengths: Sequence[int], layers: int
) -> list[PrefixCache | None]:
    """The cache for each window: none beyond its limit, so that a document does not evict its own windows.

    lengths: tokens of each window's prompt; layers: how many of the draft's layers hold KV
    """
    if prefixes is None:
        return [None] * len(lengths)
    limit = prefixes.capacity_bytes
    if prefixes.store is not None:
        limit = min(limit, prefixes.store.capacity_bytes)
    sizes = (cache_bytes(draft.config, length + HEADROOM, draft.model.dtype) for length in lengths)
    held = accumulate(size * layers // layer_count(draft.model) for size in sizes)
    return [prefixes if used <= limit else None for used in held]

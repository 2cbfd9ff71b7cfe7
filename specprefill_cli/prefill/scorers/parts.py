"""Parts of a document beyond the draft's context, read in turn, and a single softmax over all of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from specprefill_cli.models.machine.memory_plan import cache_bytes
from specprefill_cli.models.running.adapter import rotation_depends_on_length
from specprefill_cli.models.running.cache import HEADROOM, KvCacheState, layer_count
from specprefill_cli.models.running.passes import QueryCapture
from specprefill_cli.prefill.importance import group_scores, query_slices
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prompting import Prompt

# Tokens that neighbouring parts share, at most: half of them give the tokens at an edge a context.
OVERLAP = 512
# Share of the draft's context that a part takes; the rest is for the distance between it and the question.
CONTEXT_SHARE = 0.5


@dataclass(frozen=True, kw_only=True)
class Part:
    """Document tokens [start, end) that are read together; the importance of those in `core` comes from this part.

    Cores divide the document. gap: positions left free before the suffix, so that the question comes as far after a
    token as in the undivided prompt, or as the draft's context allows: attention depends on that distance
    """

    start: int
    end: int
    core: tuple[int, int]
    gap: int

    def cut_prompt(self, prompt: Prompt) -> Prompt:
        """The prompt with only this part of the document."""
        first, last = prompt.document
        removed = last - first - (self.end - self.start)
        tokens = (prompt.tokens[:first], prompt.tokens[first + self.start : first + self.end], prompt.tokens[last:])
        return Prompt(
            tokens=torch.cat(tokens),
            document=(first, last - removed),
            question=(prompt.question[0] - removed, prompt.question[1] - removed),
            offsets=prompt.offsets[self.start : self.end],
        )

    def core_slice(self, prompt: Prompt) -> slice:
        """The core's tokens in the part's prompt."""
        shift = prompt.document[0] - self.start
        return slice(self.core[0] + shift, self.core[1] + shift)

    def cut_request(self, request: PrefillRequest) -> PrefillRequest:
        """The request to score this part. Its KV depends neither on the question nor on the gap before it."""
        if self.end - self.start == len(request.draft_prompt.offsets):
            return request
        return replace(request, draft_prompt=self.cut_prompt(request.draft_prompt), draft_gap=self.gap)


def divide_document(tokens: int, size: int, room: int) -> tuple[Part, ...]:
    """Parts of about the same size, at most `size`, over a document of `tokens` tokens, in order.

    room: document tokens for which the draft has positions; distances beyond are shortened evenly
    """
    overlap = min(OVERLAP, size // 4)
    count = -(-tokens // (size - overlap)) if tokens > size else 1
    edges = [tokens * number // count for number in range(count + 1)]
    shortening = 1.0 if tokens <= room else max(0, room - size) / (tokens - edges[1])
    parts = []
    for first, last in pairwise(edges):
        end = min(tokens, last + overlap // 2)
        gap = int(shortening * (tokens - end))
        parts.append(Part(start=max(0, first - overlap // 2), end=end, core=(first, last), gap=gap))
    return tuple(parts)


def document_parts(request: PrefillRequest) -> tuple[Part, ...]:
    """The parts in which the draft reads a request's document: a single part where the prompt fits its context."""
    prompt, draft = request.draft_prompt, request.draft
    tokens = len(prompt.offsets)
    room = draft.context - (prompt.length - tokens)
    if tokens <= room:
        return divide_document(tokens, tokens, tokens)
    size = min(room if room > 0 else tokens, max(request.chunk_size, int(CONTEXT_SHARE * draft.context)))
    # Where the rotation depends on the length, the keys of a cache are rotated alike only without a gap.
    return divide_document(tokens, size, size if rotation_depends_on_length(draft.config) else room)


@dataclass(frozen=True, kw_only=True)
class CoreScores:
    """Attention of some heads of a layer to a part's core, before the softmax.

    weights: [heads, Q, core] exp(score - largest); largest: [heads, Q] the largest score of each query
    masses: [2, heads, Q] log-sum-exp of the scores: of the core, and of prefix and suffix
    """

    weights: Tensor
    largest: Tensor
    masses: Tensor

    def cpu(self) -> "CoreScores":
        return CoreScores(weights=self.weights.cpu(), largest=self.largest.cpu(), masses=self.masses.cpu())


def score_core(
    state: KvCacheState, capture: QueryCapture, layer: int, heads: Sequence[int], prompt: Prompt, core: slice
) -> CoreScores:
    """Score the core of a part, a slice of its prompt's tokens; heads: ascending. The overlap around it is left out."""
    start, end = prompt.document
    blocks: list[tuple[Tensor, Tensor, Tensor]] = []
    for rows in query_slices(state, capture, prompt.length, layer):
        scores = torch.cat(list(group_scores(state, capture, layer, rows, prompt.length, heads)))
        scores[..., start : core.start] = float("-inf")
        scores[..., core.stop : end] = float("-inf")
        largest = scores.amax(-1)
        weights = (scores - largest[..., None]).exp_()
        shared = weights[..., :start].sum(-1) + weights[..., end:].sum(-1)
        masses = torch.stack([weights[..., core].sum(-1), shared]).log() + largest
        blocks.append((weights[..., core].clone(), largest, masses))
    joined = zip(zip(*blocks, strict=True), (1, 1, 2), strict=True)
    weights, largest, masses = (torch.cat(tensors, dim) for tensors, dim in joined)
    return CoreScores(weights=weights, largest=largest, masses=masses)


def normalise_cores(parts: Sequence[CoreScores], head_weights: Tensor) -> Tensor:
    """Importance [n]: the mean over queries of a single softmax over all parts, by weights of heads."""
    # Every part holds prefix and suffix; they count once, with the mean over parts.
    cores, shared = torch.stack([part.masses for part in parts], 1).logsumexp(1)
    normalisers = torch.logaddexp(cores, shared - torch.tensor(float(len(parts))).log())
    query_weights = head_weights[:, None].to(normalisers) / normalisers.shape[1]
    shares = ((part, (part.largest - normalisers).exp() * query_weights) for part in parts)
    return torch.cat([torch.einsum("hqn,hq->n", part.weights, share).cpu() for part, share in shares])


def cached_parts(request: PrefillRequest, parts: Sequence[Part], layers: int) -> list[PrefillRequest]:
    """The parts' requests, without a cache where they would evict one another. layers: the draft's that hold KV."""
    prefixes, draft, requests = request.draft_prefixes, request.draft, [part.cut_request(request) for part in parts]
    tokens = sum(cut.draft_prompt.length + HEADROOM for cut in requests)
    needed = cache_bytes(draft.config, tokens, draft.model.dtype) * layers // layer_count(draft.model)
    if prefixes is None or len(parts) == 1 or needed <= prefixes.capacity_bytes:
        return requests
    return [replace(cut, draft_prefixes=None) for cut in requests]

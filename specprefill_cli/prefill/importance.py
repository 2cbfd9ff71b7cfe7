"""Importance of document tokens from a draft's attention (SpecPrefill, arXiv 2502.02789, section 3)."""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specprefill_cli.documents.sentences import sentences_of
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.running.cache import KvCacheState, copy_to, layer_keys
from specprefill_cli.models.running.passes import QueryCapture

POOL_KERNEL = 13
Scored = TypeVar("Scored", Tensor, np.ndarray)
# Attention scores held at once: few on a CPU, for its memory; more on a GPU, for the launches of kernels.
CPU_SCORE_ELEMENTS, GPU_SCORE_ELEMENTS = 2**20, 2**26


def attention_importance(
    state: KvCacheState, capture: QueryCapture, prompt_tokens: int, document: tuple[int, int], layers: Sequence[int]
) -> Tensor:
    """Importance [n] of the document's tokens, float32 on the CPU (SpecPrefill, arXiv 2502.02789, section 3).

    For each captured query, layer and head: softmax in float32 over all keys that the query may see (over the
    document's alone it would inflate heads that attend mostly to BOS); average pooling over neighbouring tokens;
    then the document's part. Maximum over layers and heads; mean over queries.

    Raises SpecprefillError when a score is NaN or infinite.
    """
    total = torch.zeros(document[1] - document[0])
    for query_slice in query_slices(state, capture, prompt_tokens, layers[0]):
        best: Tensor | None = None
        for layer in layers:
            for scores in group_scores(state, capture, layer, query_slice, prompt_tokens):
                pooled = pool(scores.softmax(-1))[..., document[0] : document[1]].amax(0)
                best = pooled if best is None else torch.maximum(best, pooled.to(best.device))
        if best is not None:
            total += best.sum(0).cpu()
    return check_finite(total / len(capture.positions))


def group_scores(
    state: KvCacheState,
    capture: QueryCapture,
    layer: int,
    query_slice: slice,
    prompt_tokens: int,
    heads: Sequence[int] | None = None,
) -> Iterator[Tensor]:
    """Scores [group, q, prompt_tokens] in float32 for each key-value head in turn, with the query heads that share it.

    query_slice: which of the captured queries; keys that they must not see score minus infinity
    heads: the query heads that are scored, ascending; None: all
    """
    keys, positions = layer_keys(state, layer)[:, :prompt_tokens], capture.positions[query_slice]
    queries = capture.layer(layer)[:, query_slice].float() * capture.scaling[layer]
    # The queries come after the document: few keys come after the first query, and only these need a mask.
    first_hidden = min(int(positions.min()) + 1, prompt_tokens)
    hidden = copy_to(torch.arange(first_hidden, prompt_tokens) > positions[:, None], keys.device)
    size = len(queries) // len(keys)
    for kv_head, query_heads in groupby(range(len(queries)) if heads is None else heads, lambda head: head // size):
        scores = queries[list(query_heads)] @ keys[kv_head].float().T
        scores[..., first_hidden:].masked_fill_(hidden, float("-inf"))
        yield scores


def query_slices(state: KvCacheState, capture: QueryCapture, prompt_tokens: int, layer: int) -> Iterator[slice]:
    """Slices of the captured queries that may be scored at once."""
    heads, rows, _ = capture.layer(layer).shape
    keys = layer_keys(state, layer)
    group = heads // len(keys)
    elements = CPU_SCORE_ELEMENTS if keys.device.type == "cpu" else GPU_SCORE_ELEMENTS
    block = max(1, elements // max(1, prompt_tokens * group))
    return (slice(first, first + block) for first in range(0, rows, block))


def check_finite(importance: Tensor) -> Tensor:
    """The importance [n]. Raises SpecprefillError when a score is NaN or infinite."""
    if not torch.isfinite(importance).all():
        raise SpecprefillError(
            "the draft's attention scores are not finite (NaN or Inf): its weights or its dtype are at fault; "
            "try --dtype float32, another --draft, or --scorer lexical"
        )
    return importance


def pool(probabilities: Tensor) -> Tensor:
    """Average over POOL_KERNEL neighbouring tokens, keeping the length: [heads, queries, n] -> the same shape."""
    return F.avg_pool1d(probabilities, POOL_KERNEL, stride=1, padding=POOL_KERNEL // 2)


def usable_layers(windows: Sequence[int | None], prompt_tokens: int) -> list[int]:
    """Return the layers that see the whole document: sliding-window layers see only their window."""
    return [layer for layer, window in enumerate(windows) if window is None or window >= prompt_tokens]


def transfer(importance: Tensor, from_offsets: np.ndarray, to_offsets: np.ndarray) -> Tensor:
    """Importance [n] of a tokenizer's tokens as that of another's [m]: the mean over their characters.

    from_offsets: [n, 2], to_offsets: [m, 2] character ranges in the same text; one outside all tokens counts as 0
    """
    characters = int(max(from_offsets[:, 1].max(initial=0), to_offsets[:, 1].max(initial=0)))
    (begins, stops), values, length = from_offsets.T, importance.double().numpy(), characters + 1
    edges = np.bincount(begins, values, length) - np.bincount(stops, values, length)
    # Byte-level tokens that split a character share its range: it gets their mean, not their sum.
    cover = np.bincount(begins, minlength=length) - np.bincount(stops, minlength=length)
    density = np.cumsum(edges)[:-1] / np.maximum(np.cumsum(cover)[:-1], 1)
    running = np.concatenate([[0.0], density.cumsum()])
    starts, ends = to_offsets[:, 0], to_offsets[:, 1]
    sums = running[ends] - running[starts]
    return torch.from_numpy(sums / np.maximum(ends - starts, 1)).float()


def blend(importance: Scored, lexical: Scored, weight: float) -> Scored:
    """Importance [n] as a mixture of two distributions over the document: 1 part `importance`, `weight` parts `lexical`."""
    return to_distribution(importance) + weight * to_distribution(lexical)


def to_distribution(scores: Scored) -> Scored:
    """Non-negative scores [n] divided by their sum."""
    return scores / max(float(scores.sum()), 1e-12)


def layer_attention(
    state: KvCacheState,
    capture: QueryCapture,
    layer: int,
    heads: Sequence[int],
    document: tuple[int, int],
    window: int | None = None,
) -> Tensor:
    """Mean attention [heads, n] of the captured queries to each document token, pooled; float32 on the CPU.

    The cache has a slot for every prompt token. heads: ascending; window: the layer's sliding window in tokens, or None
    """
    keys, positions = layer_keys(state, layer), capture.positions
    total = keys.shape[1]
    summed = torch.zeros(len(heads), document[1] - document[0], device=keys.device)
    for query_slice in query_slices(state, capture, total, layer):
        attention = []
        for scores in group_scores(state, capture, layer, query_slice, total, heads):
            if window is not None:
                outside = positions[query_slice, None] - torch.arange(total) >= window
                scores.masked_fill_(outside.to(keys.device), float("-inf"))
            attention.append(scores.softmax(-1)[..., document[0] : document[1]].sum(1))
        summed += torch.cat(attention)
    return pool((summed / len(positions))[:, None])[:, 0].cpu()


# `--mode auto` reads the whole prompt for a question about everything up to this many tokens.
WHOLE_TOKENS = 4_096
# Share of a longer prompt that `--keep auto` keeps for one.
OUTLINE_KEEP = 0.3
PARAGRAPH_BREAK = re.compile(r"\n\s*\n|\n(?=#)")


def outline_importance(importance: Tensor, text: str, offsets: np.ndarray) -> Tensor:
    """Importance [n] with headings and paragraphs' first sentences above the rest. offsets: [n, 2] of its tokens."""
    if not len(importance):
        return importance
    starts = np.array([0, *(match.end() for match in PARAGRAPH_BREAK.finditer(text))])
    sentences = sentences_of(text)
    first = np.unique(np.searchsorted(sentences[:, 0], starts).clip(max=max(0, len(sentences) - 1)))
    opens = np.zeros(len(text) + 1, dtype=bool)
    for begin, end in sentences[first].tolist():
        opens[begin:end] = True
    return importance + torch.from_numpy(opens[offsets[:, 0]]) * importance.max()

"""Scoring heads: the few attention heads of a draft that point at the passage that answers a question.

Retrieval heads were described in arXiv 2404.15574; `specprefill calibrate --heads` finds them for any draft.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from specprefill_cli.models.loaded import LoadedModel
from specprefill_cli.models.running.cache import KvCacheState, layer_keys
from specprefill_cli.models.running.passes import QueryCapture
from specprefill_cli.models.sources.pairs import HEADS_FILE
from specprefill_cli.prefill.calibration import check_identity, read_description, weights_fingerprint
from specprefill_cli.prefill.importance import group_scores, pool, query_slices

REMEDY = "specprefill calibrate --heads QUESTIONS.jsonl"
Scored = TypeVar("Scored", Tensor, np.ndarray)


@dataclass(frozen=True)
class Head:
    """An attention head and its weight in the importance."""

    layer: int
    head: int
    weight: float


@dataclass(frozen=True, kw_only=True)
class ScoringHeads:
    """The scoring heads and the identity of a draft.

    lexical: weight of BM25, against 1 for the heads
    auto_mass: share of the importance that `--keep auto` holds with these heads
    auto_tokens: length of the documents on which `auto_mass` was tuned; it is a share of so many tokens' importance;
        None: of all
    window: previous tokens that a document token must see for these heads to work as well; None: all of them
    default: whether, on held-out rows, they point at the passage better than the scorers without calibration
    evidence: figures of the search
    """

    heads: tuple[Head, ...]
    auto_mass: float
    default: bool
    weights: str
    tokenizer: str
    layers: int
    hidden_size: int
    evidence: Mapping[str, float | int]
    window: int | None = None
    lexical: float = 0.0
    auto_tokens: int | None = None


def draft_identity(draft: LoadedModel) -> dict[str, Any]:
    """Return the values that identify a draft in a file of heads."""
    text = draft.model.config.get_text_config()
    return {
        "weights": weights_fingerprint(draft.model),
        "tokenizer": draft.fingerprint,
        "layers": text.num_hidden_layers,
        "hidden_size": text.hidden_size,
    }


def load_heads(folder: Path, draft: LoadedModel) -> ScoringHeads | None:
    """The scoring heads in a folder, or None where there are none.

    Raises SpecprefillError when the file is damaged or belongs to another draft.
    """

    def parse(fields: dict[str, Any]) -> ScoringHeads:
        return ScoringHeads(**{**fields, "heads": tuple(Head(**head) for head in fields["heads"])})

    path = folder / HEADS_FILE
    heads = read_description(path, "scoring heads", REMEDY, parse)
    if heads is not None:
        check_identity(path, vars(heads), draft_identity(draft), "draft", REMEDY)
    return heads


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
        for scores in group_scores(state, capture, layer, query_slice, positions, total, heads):
            if window is not None:
                outside = positions[query_slice, None] - torch.arange(total) >= window
                scores.masked_fill_(outside.to(keys.device), float("-inf"))
            attention.append(scores.softmax(-1)[..., document[0] : document[1]].sum(1))
        summed += torch.cat(attention)
    return pool((summed / len(positions))[:, None])[:, 0].cpu()

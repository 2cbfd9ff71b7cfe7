"""Scoring heads: the few attention heads of a draft that point at the passage which answers a question.

Retrieval heads were described in arXiv 2404.15574; here `specprefill calibrate --heads` finds them for any draft.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.files import write_whole
from specprefill_cli.models.cache import PrefillState, layer_keys
from specprefill_cli.models.calibration import weights_fingerprint
from specprefill_cli.models.query_capture import QueryCapture
from specprefill_cli.prefill.importance import check_finite, pool, queries_at_once

if TYPE_CHECKING:
    from specprefill_cli.models.loading import LoadedModel

FILE = "heads.json"
Scored = TypeVar("Scored", Tensor, np.ndarray)


@dataclass(frozen=True)
class Head:
    """One attention head and its weight in the importance."""

    layer: int
    head: int
    weight: float


@dataclass(frozen=True)
class ScoringHeads:
    """The heads of one draft, with what tells whether they belong to it.

    lexical: weight of what words alone say (BM25), against 1 for the heads
    auto_mass: share of the importance mass that `--keep auto` holds with these heads
    window: tokens that the draft must see back while it reads, for these heads to point as well; None: all of them
    default: whether they found the passage better than the scorer `question` on held-out rows
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

    def save(self, folder: Path) -> Path:
        """Write the description; raises SpecprefillError where that is not possible."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / FILE
        write_whole(path, json.dumps({"schema": 1, **asdict(self)}, indent=2) + "\n")
        return path


def identity(draft: LoadedModel) -> dict[str, str | int]:
    """What a file of heads says of its draft."""
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
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        values.pop("schema")
        heads = ScoringHeads(**{**values, "heads": tuple(Head(**head) for head in values["heads"])})
    except (ValueError, KeyError, TypeError) as error:
        raise SpecprefillError(f"{path}: not a file of scoring heads ({error}); recreate it with {REMEDY}") from error
    for name, value in identity(draft).items():
        if getattr(heads, name) != value:
            raise SpecprefillError(
                f"{path}: made for another draft ({name} {getattr(heads, name)}, this one has {value}); "
                f"recreate it with {REMEDY}"
            )
    return heads


REMEDY = "specprefill calibrate --heads QUESTIONS.jsonl"


def head_importance(
    state: PrefillState, capture: QueryCapture, document: tuple[int, int], heads: tuple[Head, ...]
) -> Tensor:
    """Importance [n] of the document's tokens, float32 on the CPU: the weighted attention of the chosen heads.

    A query's attention over all keys up to its own counts, so that a query which looks elsewhere adds little: unlike
    the published scoring (`importance.attention_importance`), which compares document tokens only. Pooled over
    neighbouring tokens, mean over the captured queries.
    """
    total = torch.zeros(document[1] - document[0])
    for layer in sorted({head.layer for head in heads}):
        chosen = [head for head in heads if head.layer == layer]
        shares = layer_attention(state, capture, layer, [head.head for head in chosen], document)
        weights = torch.tensor([head.weight for head in chosen])
        total += (weights[:, None] * shares).sum(0)
    return check_finite(total)


def blend(importance: Scored, lexical: Scored, weight: float) -> Scored:
    """Importance [n] as a mixture of two distributions over the document: 1 part the heads', `weight` parts BM25's."""
    return share(importance) + weight * share(lexical)


def share(scores: Scored) -> Scored:
    """Scores [n], 0 or more, as shares of their sum."""
    return scores / max(float(scores.sum()), 1e-12)


def layer_attention(
    state: PrefillState,
    capture: QueryCapture,
    layer: int,
    heads: list[int],
    document: tuple[int, int],
    window: int | None = None,
) -> Tensor:
    """Mean attention [heads, n] of the captured queries to each document token, pooled; float32 on the CPU.

    The cache has a slot for every prompt token. window: the layer's sliding window in tokens, where it has one
    """
    keys = layer_keys(state, layer)
    queries = capture.layer(layer)
    group = queries.shape[0] // keys.shape[0]
    rows, total = queries.shape[1], keys.shape[1]
    places = capture.positions.to(keys.device)
    block = queries_at_once(total, keys.device)
    summed = torch.zeros(len(heads), document[1] - document[0], device=keys.device)
    for first in range(0, rows, block):
        distance = places[first : first + block, None] - torch.arange(total, device=keys.device)
        hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
        for found, head in zip(summed, heads, strict=True):
            picked = queries[head, first : first + block].float() * capture.scaling[layer]
            scores = picked @ keys[head // group].float().T
            found += scores.masked_fill_(hidden, float("-inf")).softmax(-1)[:, document[0] : document[1]].sum(0)
    return pool((summed / rows)[:, None])[:, 0].cpu()

"""The search for scoring heads: the attention heads of a draft that rank the passage with the answer first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from specprefill_cli.prefill.scoring_heads import Head, blend

# Keep ratios at which recall is measured.
KEEP_RATIOS = (0.03, 0.1, 0.2)
MOST_HEADS = 8
MOST_CANDIDATES = 24
# The mean recall that another head must add.
SMALLEST_GAIN = 0.002
LEXICAL_WEIGHTS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
# `--keep auto` holds enough mass to keep the answer in this ratio of the cases in which the best fifth of the chunks does.
AUTO_RECALL = 0.98
AUTO_REFERENCE = 0.2


@dataclass(frozen=True)
class Sighting:
    """One question with a known answer.

    scores: [layers x heads, chunks] mean attention of each head to each chunk; gold: chunks that hold the answer
    question, lexical: [chunks] scores of the scorers of these names
    """

    scores: np.ndarray
    gold: np.ndarray
    question: np.ndarray
    lexical: np.ndarray


def gold_rank(scores: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """How many chunks rank before the last gold one [...], from scores [..., chunks]; ties rank before."""
    worst = scores[..., gold].min(-1)
    return (scores >= worst[..., None]).sum(-1) - 1


def recall(ranks: np.ndarray, chunks: np.ndarray) -> np.ndarray:
    """Mean over `KEEP_RATIOS` of how often the gold chunks are kept: ranks [..., items], chunks [items] -> [...]."""
    return np.mean([among_best(ranks, keep, chunks).mean(-1) for keep in KEEP_RATIOS], axis=0)


def among_best(ranks: np.ndarray, keep: float, chunks: np.ndarray) -> np.ndarray:
    """Whether ranks [..., items] lie among the chunks that a keep ratio keeps, at least one; chunks: their number [items]."""
    return ranks < np.maximum(1, np.ceil(keep * chunks))


def search_heads(sightings: Sequence[Sighting], heads: int) -> tuple[Head, ...]:
    """The best head and, greedily, those that raise recall together with it, equally weighted; heads: per layer."""
    chunks = np.array([sighting.scores.shape[1] for sighting in sightings])
    single_recalls = recall(
        np.stack([gold_rank(sighting.scores, sighting.gold) for sighting in sightings], axis=-1), chunks
    )
    candidates = np.argsort(-single_recalls, kind="stable")[:MOST_CANDIDATES].tolist()
    chosen = [candidates.pop(0)]
    best = single_recalls[chosen[0]]
    while candidates and len(chosen) < MOST_HEADS:
        together = np.stack(
            [
                gold_rank(sighting.scores[chosen].sum(0) + sighting.scores[candidates], sighting.gold)
                for sighting in sightings
            ],
            axis=-1,
        )
        gains = recall(together, chunks)
        place = int(gains.argmax())
        if gains[place] < best + SMALLEST_GAIN:
            break
        best = gains[place]
        chosen.append(candidates.pop(place))
    return tuple(Head(row // heads, row % heads, 1.0 / len(chosen)) for row in sorted(chosen))


def combine_heads(sighting: Sighting, chosen: Sequence[Head], heads: int, lexical: float = 0.0) -> np.ndarray:
    """Chunk scores [chunks] of the chosen heads, blended with BM25's at a weight."""
    rows = [head.layer * heads + head.head for head in chosen]
    weights = np.array([head.weight for head in chosen])
    return blend(weights @ sighting.scores[rows], sighting.lexical, lexical)


def search_lexical(sightings: Sequence[Sighting], chosen: Sequence[Head], heads: int) -> float:
    """The weight of BM25, of `LEXICAL_WEIGHTS`, with the best recall beside the chosen heads; 0 if the gain is noise."""
    golds = [sighting.gold for sighting in sightings]
    recalls = {
        weight: mean_recall([combine_heads(sighting, chosen, heads, weight) for sighting in sightings], golds)
        for weight in LEXICAL_WEIGHTS
    }
    best = max(recalls, key=lambda weight: recalls[weight])
    return best if recalls[best] >= recalls[0.0] + SMALLEST_GAIN else 0.0


def recall_at(keep: float, scores: Sequence[np.ndarray], golds: Sequence[np.ndarray]) -> float:
    """How often a keep ratio keeps the gold chunks, from the chunk scores [chunks] of each question."""
    ranks = np.array([gold_rank(row, gold) for row, gold in zip(scores, golds, strict=True)])
    return float(among_best(ranks, keep, np.array([len(row) for row in scores])).mean())


def mean_recall(scores: Sequence[np.ndarray], golds: Sequence[np.ndarray]) -> float:
    """The mean of `recall_at` over `KEEP_RATIOS`."""
    return fmean(recall_at(keep, scores, golds) for keep in KEEP_RATIOS)


def auto_mass(scores: Sequence[np.ndarray], golds: Sequence[np.ndarray]) -> float:
    """The ratio of the mass for `--keep auto`; see `AUTO_RECALL`."""
    return smallest_mass(scores, golds, AUTO_RECALL * recall_at(AUTO_REFERENCE, scores, golds))


def smallest_mass(scores: Sequence[np.ndarray], golds: Sequence[np.ndarray], recall: float) -> float:
    """The smallest ratio of summed scores, at most 0.99, whose best chunks hold the answer this often."""
    needed = []
    for row, gold in zip(scores, golds, strict=True):
        masses = np.sort(row)[::-1].cumsum()
        needed.append(masses[gold_rank(row, gold)] / masses[-1])
    # Selection takes the smallest set that reaches the mass, so slightly less still reaches the same set.
    place = max(0, min(len(needed) - 1, math.ceil(recall * len(needed)) - 1))
    return float(min(0.99, np.sort(needed)[place] - 1e-6))

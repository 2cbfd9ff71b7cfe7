"""Searches scoring heads: the attention heads of a draft that rank the passage with the answer first."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from specprefill_cli.prefill.calibration import Head
from specprefill_cli.prefill.importance import blend

# Keep ratios at which recall is measured.
KEEP_RATIOS = (0.03, 0.1, 0.2)
MOST_HEADS = 8
MOST_CANDIDATES = 24
# Another head must add at least this much mean recall.
SMALLEST_GAIN = 0.002
LEXICAL_WEIGHTS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
# `--keep auto` keeps the answer in this share of the cases in which AUTO_REFERENCE, the best fifth of the chunks, does.
AUTO_RECALL = 0.98
AUTO_REFERENCE = 0.2


@dataclass(frozen=True)
class Sighting:
    """A question with a known answer.

    scores: [layers x heads, chunks] mean attention of each head to each chunk; gold: chunks that hold the answer
    question, lexical: [chunks] scores of the scorers with these names
    """

    scores: np.ndarray
    gold: np.ndarray
    question: np.ndarray
    lexical: np.ndarray


def gold_rank(scores: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """Number of chunks that rank before the last gold chunk [...], from scores [..., chunks]; ties rank before it."""
    worst = scores[..., gold].min(-1)
    return (scores >= worst[..., None]).sum(-1) - 1


def recall(ranks: np.ndarray, chunks: np.ndarray) -> np.ndarray:
    """Share of questions whose gold chunks are kept, averaged over `KEEP_RATIOS`: ranks [..., items], chunks [items] -> [...]."""
    return np.mean([among_best(ranks, keep, chunks).mean(-1) for keep in KEEP_RATIOS], axis=0)


def among_best(ranks: np.ndarray, keep: float, chunks: np.ndarray) -> np.ndarray:
    """Whether ranks [..., items] lie among the kept chunks, at least 1; chunks: number of chunks of each question [items]."""
    return ranks < np.maximum(1, np.ceil(keep * chunks))


def search_heads(sightings: Sequence[Sighting], heads: int) -> tuple[Head, ...]:
    """Take the best head, then greedily add heads that raise recall, equally weighted; heads: number per layer."""
    chunks = np.array([sighting.scores.shape[1] for sighting in sightings])
    ranks = [gold_rank(sighting.scores, sighting.gold) for sighting in sightings]
    single_recalls = recall(np.stack(ranks, axis=-1), chunks)
    candidates = np.argsort(-single_recalls, kind="stable")[:MOST_CANDIDATES].tolist()
    chosen_rows = [candidates.pop(0)]
    best_recall = single_recalls[chosen_rows[0]]
    while candidates and len(chosen_rows) < MOST_HEADS:
        ranks = [
            gold_rank(sighting.scores[chosen_rows].sum(0) + sighting.scores[candidates], sighting.gold)
            for sighting in sightings
        ]
        gains = recall(np.stack(ranks, axis=-1), chunks)
        best_index = int(gains.argmax())
        if gains[best_index] < best_recall + SMALLEST_GAIN:
            break
        best_recall = gains[best_index]
        chosen_rows.append(candidates.pop(best_index))
    return tuple(Head(row // heads, row % heads, 1.0 / len(chosen_rows)) for row in sorted(chosen_rows))


def combine_heads(sighting: Sighting, chosen_heads: Sequence[Head], heads: int, lexical: float = 0.0) -> np.ndarray:
    """Chunk scores [chunks] of the chosen heads, blended with BM25; lexical: the weight of BM25."""
    rows = [head.layer * heads + head.head for head in chosen_heads]
    weights = np.array([head.weight for head in chosen_heads])
    return blend(weights @ sighting.scores[rows], sighting.lexical, lexical)


def search_lexical(sightings: Sequence[Sighting], chosen_heads: Sequence[Head], heads: int) -> float:
    """The weight of BM25 among `LEXICAL_WEIGHTS` that gives the best recall with the chosen heads; 0 if the gain is noise."""
    golds = [sighting.gold for sighting in sightings]
    recalls = {
        weight: mean_recall([combine_heads(sighting, chosen_heads, heads, weight) for sighting in sightings], golds)
        for weight in LEXICAL_WEIGHTS
    }
    best_weight = max(recalls, key=lambda weight: recalls[weight])
    return best_weight if recalls[best_weight] >= recalls[0.0] + SMALLEST_GAIN else 0.0


def recall_at(keep: float, scores: Sequence[np.ndarray], golds: Sequence[np.ndarray]) -> float:
    """Share of questions whose gold chunks a keep ratio keeps, from each question's chunk scores [chunks]."""
    ranks = np.array([gold_rank(row, gold) for row, gold in zip(scores, golds, strict=True)])
    return float(among_best(ranks, keep, np.array([len(row) for row in scores])).mean())


def mean_recall(scores: Sequence[np.ndarray], golds: Sequence[np.ndarray]) -> float:
    """The mean of `recall_at` over `KEEP_RATIOS`."""
    return fmean(recall_at(keep, scores, golds) for keep in KEEP_RATIOS)


def auto_mass(scores: Sequence[np.ndarray], golds: Sequence[np.ndarray]) -> float:
    """The share of the mass that `--keep auto` keeps; see `AUTO_RECALL`."""
    return smallest_mass(scores, golds, AUTO_RECALL * recall_at(AUTO_REFERENCE, scores, golds))


def smallest_mass(scores: Sequence[np.ndarray], golds: Sequence[np.ndarray], recall: float) -> float:
    """The smallest share of the summed scores, at most 0.99, whose best chunks hold the answer this often."""
    needed_masses = []
    for row, gold in zip(scores, golds, strict=True):
        masses = np.sort(row)[::-1].cumsum()
        needed_masses.append(masses[gold_rank(row, gold)] / masses[-1])
    # Selection takes the smallest set that reaches the mass, so a slightly smaller mass gives the same set.
    index = max(0, min(len(needed_masses) - 1, math.ceil(recall * len(needed_masses)) - 1))
    return float(min(0.99, np.sort(needed_masses)[index] - 1e-6))

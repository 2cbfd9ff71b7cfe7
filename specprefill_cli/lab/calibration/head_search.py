"""The search for scoring heads: which of a draft's attention heads rank the passage with the answer first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specprefill_cli.prefill.scoring_heads import Head, blend

# Shares of the chunks in which the answer's must be found: the keep ratios that people use.
KEPT_SHARES = (0.03, 0.1, 0.2)
MOST_HEADS = 8
MOST_CANDIDATES = 24
# A further head must add this much to the mean recall, else it is noise.
SMALLEST_GAIN = 0.002
LEXICAL_WEIGHTS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
# `--keep auto` takes at least the smallest share of mass that keeps the answer this much as often as the best fifth of the
# chunks does: some answers are found by no share short of everything.
AUTO_RECALL = 0.98
AUTO_REFERENCE = 0.2


@dataclass(frozen=True)
class Sighting:
    """One question with a known answer.

    scores: [layers x heads, chunks] mean attention of each head to each chunk; gold: chunks that hold the answer;
    usual, lexical: [chunks] scores of the scorer `question`, and of words alone (BM25)
    """

    scores: np.ndarray
    gold: np.ndarray
    usual: np.ndarray
    lexical: np.ndarray


def gold_rank(scores: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """Number of chunks ranked before the last of the gold ones [...], from scores [..., chunks]; ties count as before."""
    worst = scores[..., gold].min(-1)
    return (scores >= worst[..., None]).sum(-1) - 1


def recall(ranks: np.ndarray, chunks: np.ndarray) -> np.ndarray:
    """Mean over KEPT_SHARES of how often the gold chunks are kept: ranks [..., items], chunks [items] -> [...]."""
    return np.mean([among_best(ranks, share, chunks).mean(-1) for share in KEPT_SHARES], axis=0)


def among_best(ranks: np.ndarray, share: float, chunks: np.ndarray) -> np.ndarray:
    """Whether a share of the chunks [items], at least one, reaches to the ranks [..., items]."""
    return ranks < np.maximum(1, np.ceil(share * chunks))


def search_heads(sightings: Sequence[Sighting], heads: int) -> tuple[Head, ...]:
    """The best head, then greedily those that find more together with it; all of one weight.

    heads: attention heads a layer, which turns rows of the scores into (layer, head)
    """
    chunks = np.array([sighting.scores.shape[1] for sighting in sightings])
    alone = recall(np.stack([gold_rank(one.scores, one.gold) for one in sightings], axis=-1), chunks)
    candidates = np.argsort(-alone, kind="stable")[:MOST_CANDIDATES].tolist()
    chosen = [candidates.pop(0)]
    best = alone[chosen[0]]
    while candidates and len(chosen) < MOST_HEADS:
        together = np.stack(
            [gold_rank(one.scores[chosen].sum(0) + one.scores[candidates], one.gold) for one in sightings],
            axis=-1,
        )
        gains = recall(together, chunks)
        place = int(gains.argmax())
        if gains[place] < best + SMALLEST_GAIN:
            break
        best = gains[place]
        chosen.append(candidates.pop(place))
    return tuple(Head(row // heads, row % heads, 1.0 / len(chosen)) for row in sorted(chosen))


def combined(sighting: Sighting, chosen: Sequence[Head], heads: int, lexical: float = 0.0) -> np.ndarray:
    """Chunk scores [chunks] of the chosen heads together, and of words at a weight."""
    rows = [head.layer * heads + head.head for head in chosen]
    weights = np.array([head.weight for head in chosen])
    return blend(weights @ sighting.scores[rows], sighting.lexical, lexical)


def search_lexical(sightings: Sequence[Sighting], chosen: Sequence[Head], heads: int) -> float:
    """The weight of words, of LEXICAL_WEIGHTS, with which the chosen heads find most; 0 where words add only noise."""
    golds = [one.gold for one in sightings]
    found = {
        weight: mean_recall([combined(one, chosen, heads, weight) for one in sightings], golds)
        for weight in LEXICAL_WEIGHTS
    }
    best = max(found, key=found.get)
    return best if found[best] >= found[0.0] + SMALLEST_GAIN else 0.0


def mean_recall(scores: Sequence[np.ndarray], golds: Sequence[np.ndarray]) -> float:
    """Mean of `share_recalls`."""
    shares = share_recalls(scores, golds).values()
    return sum(shares) / len(shares)


def share_recalls(scores: Sequence[np.ndarray], golds: Sequence[np.ndarray]) -> dict[str, float]:
    """How often the gold chunks are among the best 3, 10 and 20 % of chunks."""
    ranks = np.array([gold_rank(one, gold) for one, gold in zip(scores, golds, strict=True)])
    chunks = np.array([len(one) for one in scores])
    return {f"recall_{share:g}": float(among_best(ranks, share, chunks).mean()) for share in KEPT_SHARES}


def auto_mass(scores: Sequence[np.ndarray], golds: Sequence[np.ndarray]) -> float:
    """The share of mass for `--keep auto`: see AUTO_RECALL."""
    ranks = np.array([gold_rank(one, gold) for one, gold in zip(scores, golds, strict=True)])
    kept = among_best(ranks, AUTO_REFERENCE, np.array([len(one) for one in scores]))
    return smallest_mass(scores, golds, AUTO_RECALL * float(kept.mean()))


def smallest_mass(scores: Sequence[np.ndarray], golds: Sequence[np.ndarray], wanted: float) -> float:
    """Smallest share of the summed scores whose best chunks hold the answer in `wanted` of all cases, at most 0.99."""
    needed = []
    for one, gold in zip(scores, golds, strict=True):
        ordered = np.sort(one)[::-1].cumsum()
        needed.append(ordered[gold_rank(one, gold)] / ordered[-1])
    # The share is held by the smallest set that reaches it, so a hair below is enough to reach the same set.
    ordered = np.sort(needed)
    place = max(0, min(len(ordered) - 1, math.ceil(wanted * len(ordered)) - 1))
    return float(min(0.99, ordered[place] - 1e-6))

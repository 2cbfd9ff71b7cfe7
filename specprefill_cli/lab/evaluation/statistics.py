"""Statistics of samples: bootstrap and Wilson intervals, quartiles, rank correlation, and how well a score predicts an event."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike

# With fewer cases of either kind, an AUROC is little more than the rank of a single case.
FEWEST_CASES = 5
# With fewer questions, a study shows no verdicts and no correlations.
FEWEST_QUESTIONS = 20
TOO_FEW = f"too few questions (n < {FEWEST_QUESTIONS})"


def mean_or_none(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are known; None where none is."""
    present = [value for value in values if value is not None]
    return statistics.fmean(present) if present else None


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The lower and the upper quartile, interpolated linearly."""
    low, high = np.quantile(values, (0.25, 0.75))
    return float(low), float(high)


def bootstrap_interval(
    values: Sequence[float], seed: int = 0, draws: int = 2_000, level: float = 0.95
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean; (nan, nan) for no values."""
    sample = np.asarray(values, dtype=float)
    if not sample.size:
        return float("nan"), float("nan")
    generator = np.random.default_rng(seed)
    means = sample[generator.integers(0, sample.size, (draws, sample.size))].mean(1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean and its bootstrap interval."""
    return statistics.fmean(values), *bootstrap_interval(values)


def wilson_interval(successes: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion, 0 to 1; unlike a bootstrap's, it has a width where all or none succeed."""
    if not n:
        return float("nan"), float("nan")
    share, spread = successes / n, z**2 / n
    centre, half = share + spread / 2, z * ((share * (1 - share) + spread / 4) / n) ** 0.5
    return (centre - half) / (1 + spread), (centre + half) / (1 + spread)


def ranks(values: ArrayLike) -> np.ndarray:
    """Ranks [n] from 1; ties get their mean rank."""
    _, inverse, counts = np.unique(np.asarray(values, dtype=float), return_inverse=True, return_counts=True)
    return (counts.cumsum() - (counts - 1) / 2)[inverse]


def spearman(first: ArrayLike, second: ArrayLike) -> float | None:
    """Spearman's rank correlation of two samples [n]; None for under three values or a constant sample."""
    first_ranks, second_ranks = ranks(first), ranks(second)
    if len(first_ranks) < 3 or not first_ranks.std() or not second_ranks.std():
        return None
    return float(np.corrcoef(first_ranks, second_ranks)[0, 1])


def auroc(scores: ArrayLike, positive: ArrayLike) -> float | None:
    """Probability that a positive case scores above a negative one (Mann-Whitney U divided by the number of pairs).

    None with under `FEWEST_CASES` of either. scores: [n]; positive: [n] booleans
    """
    mask = np.asarray(positive, dtype=bool)
    positives, negatives = int(mask.sum()), int((~mask).sum())
    if min(positives, negatives) < FEWEST_CASES:
        return None
    rank_sum = float(ranks(scores)[mask].sum())
    return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)


def detection_threshold(negatives: ArrayLike, false_alarms: float) -> float:
    """The lowest of the negative cases' scores that at most a share of `false_alarms` of them lie above."""
    return float(np.quantile(np.asarray(negatives, dtype=float), 1 - false_alarms, method="inverted_cdf"))


def detection_interval(
    positives: ArrayLike,
    negatives: ArrayLike,
    false_alarms: float,
    seed: int = 0,
    draws: int = 2_000,
    level: float = 0.95,
) -> tuple[float, float]:
    """Percentile bootstrap interval of the share of positive cases above `detection_threshold`.

    Cases are drawn in pairs, and each draw has a threshold of its own, so that its uncertainty counts too.

    positives, negatives: scores [n]; the same place of both is one pair
    """
    above, below = np.asarray(positives, dtype=float), np.asarray(negatives, dtype=float)
    generator = np.random.default_rng(seed)
    drawn = generator.integers(0, above.size, (draws, above.size))
    thresholds = np.quantile(below[drawn], 1 - false_alarms, axis=1, method="inverted_cdf")
    shares = (above[drawn] > thresholds[:, None]).mean(1)
    low, high = np.quantile(shares, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)

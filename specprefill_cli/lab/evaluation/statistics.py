"""Statistics of samples: intervals, quartiles, and AUROC.

A figure NAME with an interval has the keys NAME, NAME_low and NAME_high.
"""

import statistics
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike

# Bootstrap samples.
DRAWS = 2_000
# With fewer positive or negative cases, an AUROC is little more than the rank of a single case.
FEWEST_CASES = 5
# With fewer questions, a study shows no verdicts.
FEWEST_QUESTIONS = 20
TOO_FEW = f"too few questions (n < {FEWEST_QUESTIONS})"


def mean_or_none(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are not None; None if all are None."""
    present = [value for value in values if value is not None]
    return statistics.fmean(present) if present else None


def quartiles(values: Sequence[float]) -> list[float]:
    """Lower quartile, median and upper quartile, linearly interpolated."""
    return np.quantile(values, (0.25, 0.5, 0.75)).tolist()


def resample(size: int) -> np.ndarray:
    """Indices [DRAWS, size] of bootstrap samples, the same in every call."""
    return np.random.default_rng(0).integers(0, size, (DRAWS, size))


def percentile_interval(values: Sequence[float] | np.ndarray) -> list[float]:
    """The bounds of the central 95 % of bootstrap values."""
    return np.quantile(values, (0.025, 0.975)).tolist()


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean and its percentile bootstrap interval."""
    sample = np.asarray(values, dtype=float)
    low, high = percentile_interval(sample[resample(sample.size)].mean(1))
    return statistics.fmean(values), low, high


def wilson_interval(successes: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion, 0 to 1; unlike a bootstrap, it has a width even if all or none succeed."""
    proportion, spread = successes / n, z**2 / n
    centre, half = proportion + spread / 2, z * ((proportion * (1 - proportion) + spread / 4) / n) ** 0.5
    return (centre - half) / (1 + spread), (centre + half) / (1 + spread)


def mean_figures(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """The mean with its bootstrap interval; None without values."""
    return named_interval(name, mean_interval(values) if values else (None, None, None))


def share_figures(name: str, outcomes: Sequence[bool]) -> dict[str, float | None]:
    """The percentage of true outcomes, with Wilson's interval; None without outcomes."""
    successes, n = sum(outcomes), len(outcomes)
    if not n:
        return named_interval(name, (None, None, None))
    return named_interval(name, [100 * share for share in (successes / n, *wilson_interval(successes, n))])


def named_interval(name: str, figures: Sequence[float | None]) -> dict[str, float | None]:
    """The keys NAME, NAME_low and NAME_high of a figure with its interval."""
    return dict(zip((name, f"{name}_low", f"{name}_high"), figures, strict=True))


def ranks(values: ArrayLike) -> np.ndarray:
    """Ranks [n] from 1; ties get their mean rank."""
    _, inverse, counts = np.unique(np.asarray(values, dtype=float), return_inverse=True, return_counts=True)
    return (counts.cumsum() - (counts - 1) / 2)[inverse]


def auroc(scores: ArrayLike, positive: ArrayLike) -> float | None:
    """Probability that a positive case scores above a negative case (Mann-Whitney U divided by the number of pairs).

    None with fewer than `FEWEST_CASES` positive or negative cases. scores: [n]; positive: [n] booleans
    """
    mask = np.asarray(positive, dtype=bool)
    positives, negatives = int(mask.sum()), int((~mask).sum())
    if min(positives, negatives) < FEWEST_CASES:
        return None
    rank_sum = float(ranks(scores)[mask].sum())
    return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)


def auroc_figures(name: str, scores: np.ndarray, positive: np.ndarray) -> dict[str, float | None]:
    """The AUROC with its bootstrap interval; None with too few cases. scores: [n]; positive: [n] booleans."""
    area = auroc(scores, positive)
    if area is None:
        return named_interval(name, (None, None, None))
    draws = (auroc(scores[sample], positive[sample]) for sample in resample(len(scores)))
    return named_interval(name, [area, *percentile_interval([draw for draw in draws if draw is not None])])

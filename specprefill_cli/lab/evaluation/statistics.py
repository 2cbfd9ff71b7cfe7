"""Rank statistics: quartiles, correlation, and how well a number predicts an event."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

# Of either kind, cases below which an AUROC says nothing: with one alone it is the rank of a single case.
FEWEST_CASES = 5


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The lower and the upper quartile, on straight lines between the values."""
    low, high = np.quantile(values, (0.25, 0.75))
    return float(low), float(high)


def ranks(values: Tensor) -> Tensor:
    """Ranks [n] from 1, ties at their mean, float64."""
    values = values.double()
    _, inverse, counts = torch.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    return (last - (counts.double() - 1) / 2)[inverse]


def spearman(first: Tensor, second: Tensor) -> float | None:
    """Spearman's rank correlation of two samples [n]; None where one of them is constant or has under three values."""
    if len(first) < 3:
        return None
    one, two = (ranks(sample) - ranks(sample).mean() for sample in (first, second))
    scale = float(one.norm() * two.norm())
    return float(one @ two) / scale if scale > 0 else None


def auroc(scores: Tensor, happened: Tensor) -> float | None:
    """Probability that a case where it happened scores above one where it did not; None under FEWEST_CASES of either.

    scores: [n]; happened: [n] booleans (Mann-Whitney U over the number of pairs)
    """
    positive, negative = int(happened.sum()), int((~happened).sum())
    if min(positive, negative) < FEWEST_CASES:
        return None
    summed = float(ranks(scores)[happened].sum())
    return (summed - positive * (positive + 1) / 2) / (positive * negative)

"""Exact match and F1 as SQuAD counts them (arXiv 1606.05250), and bootstrap intervals."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
NOT_FOUND = "not found"


def normalise(text: str) -> str:
    """Lower case, without punctuation, articles and superfluous blanks."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def exact_match(answer: str, references: Sequence[str]) -> float:
    """1 when the normalised answer equals a reference; a question without references wants `not found`."""
    return float(normalise(answer) in {normalise(reference) for reference in references or [NOT_FOUND]})


def f1(answer: str, references: Sequence[str]) -> float:
    """Best overlap of words with a reference, 0 to 1: the harmonic mean of precision and recall."""
    return max(
        word_f1(normalise(answer).split(), normalise(reference).split()) for reference in references or [NOT_FOUND]
    )


def word_f1(answer: list[str], reference: list[str]) -> float:
    shared = sum((Counter(answer) & Counter(reference)).values())
    if not shared:
        return float(answer == reference)
    return 2 * shared / (len(answer) + len(reference))


def contains_answer(answer: str, references: Sequence[str]) -> bool:
    """Whether a reference equals the answer or stands in it as whole words, both normalised."""
    given = f" {normalise(answer)} "
    return any(f" {normalise(reference)} " in given for reference in references or [NOT_FOUND])


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

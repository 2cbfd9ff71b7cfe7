"""Exact match and F1 of answers, as SQuAD counts them (arXiv 1606.05250)."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
# The right answer to a question without references.
NOT_FOUND = "not found"


def normalise(text: str) -> str:
    """Lower-case text without punctuation, articles and extra blanks."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def exact_match(answer: str, references: Sequence[str]) -> float:
    """1 if the normalised answer equals a reference, else 0."""
    return float(normalise(answer) in {normalise(reference) for reference in references or [NOT_FOUND]})


def f1(answer: str, references: Sequence[str]) -> float:
    """The highest word F1 of the normalised answer with any reference, 0 to 1."""
    return max(
        word_f1(normalise(answer).split(), normalise(reference).split()) for reference in references or [NOT_FOUND]
    )


def word_f1(answer: list[str], reference: list[str]) -> float:
    """Harmonic mean of the precision and recall of the answer's words; 1 if both have none."""
    overlap = sum((Counter(answer) & Counter(reference)).values())
    if not overlap:
        return float(answer == reference)
    return 2 * overlap / (len(answer) + len(reference))


def contains_answer(answer: str, references: Sequence[str]) -> bool:
    """Whether any reference appears in the answer as whole words, both normalised."""
    padded = f" {normalise(answer)} "
    return any(f" {normalise(reference)} " in padded for reference in references or [NOT_FOUND])

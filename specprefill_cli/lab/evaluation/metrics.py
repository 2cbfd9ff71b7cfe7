"""Exact match and F1 of answers, as in SQuAD (arXiv 1606.05250).

`not found` is the right answer to a question without references.
"""

from collections.abc import Sequence

from specprefill_cli.answering.tasks import normalise_words, word_f1
from specprefill_cli.record import NOT_FOUND


def exact_match(answer: str, references: Sequence[str]) -> float:
    """1 if the normalised answer equals a reference, else 0."""
    return float(normalise_words(answer) in {normalise_words(reference) for reference in references or [NOT_FOUND]})


def f1(answer: str, references: Sequence[str]) -> float:
    """The highest word F1 of the normalised answer with any reference, 0 to 1."""
    return max(word_f1(answer, reference) for reference in references or [NOT_FOUND])


def contains_answer(answer: str, references: Sequence[str]) -> bool:
    """Whether any reference appears in the answer as whole words, after `normalise_words`."""
    padded = f" {normalise_words(answer)} "
    return any(f" {normalise_words(reference)} " in padded for reference in references or [NOT_FOUND])

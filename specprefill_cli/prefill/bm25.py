"""Okapi BM25 of a question over passages of a document: what words alone say about where the answer is."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import numpy as np

# Scripts without spaces between words: each of their characters counts as a word.
UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
WORD = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+")


def bm25(
    question: str,
    text: str,
    starts: np.ndarray,
    end: int,
    k1: float = 1.2,
    b: float = 0.75,
    normalise: Callable[[str], str] = str.lower,
) -> np.ndarray:
    """Okapi BM25 (Robertson and Zaragoza 2009) of passages of a text for a question: [n].

    starts: [n] character at which each passage begins, ascending; it ends where the next one begins, the last at `end`.
        A word belongs to the passage that it begins in
    normalise: the form in which words are compared; empty for words that do not count in a question
    """
    count = len(starts)
    # The same words come again and again.
    normalised = cache(normalise)
    terms = set(map(normalised, WORD.findall(question))) - {""}
    places: dict[str, list[int]] = {term: [] for term in sorted(terms)}
    word_starts = []
    for match in WORD.finditer(text, int(starts[0]), end):
        word_starts.append(match.start())
        word = normalised(match.group())
        if word in places:
            places[word].append(match.start())

    def count_by_passage(positions: list[int]) -> np.ndarray:
        numbers = np.searchsorted(starts, np.array(positions, dtype=np.int64), side="right") - 1
        return np.bincount(numbers, minlength=count).astype(float)

    lengths = count_by_passage(word_starts)
    norm = k1 * (1 - b + b * lengths / max(lengths.mean(), 1e-9))
    scores = np.zeros(count)
    for positions in places.values():
        frequency = count_by_passage(positions)
        containing = np.count_nonzero(frequency)
        idf = np.log1p((count - containing + 0.5) / (containing + 0.5))
        scores += idf * frequency * (k1 + 1) / (frequency + norm)
    return scores

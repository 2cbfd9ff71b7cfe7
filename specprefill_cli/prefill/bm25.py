"""BM25 of a question over the chunks of a document: what words alone say about where the answer stands."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    return [word.lower() for word in WORD.findall(text)]


def chunk_bm25(question: str, text: str, offsets: np.ndarray, chunk_size: int) -> np.ndarray:
    """BM25 score [chunks] of a document's chunks for a question.

    offsets: [n, 2] character ranges of the document's tokens in `text`. A word counts where it begins.
    """
    starts = offsets[::chunk_size, 0]
    matches = list(WORD.finditer(text, int(starts[0]), int(offsets[-1, 1])))
    found = [match.group().lower() for match in matches]
    places = np.searchsorted(starts, [match.start() for match in matches], side="right") - 1
    return bm25(words(question), found, places, len(starts))


def bm25(
    query: Sequence[str], found: Sequence[str], places: np.ndarray, chunks: int, k1: float = 1.2, b: float = 0.75
) -> np.ndarray:
    """Okapi BM25 (Robertson and Zaragoza 2009) of each chunk: [chunks].

    query: words asked for; found: words of the text, each in the chunk that `places` [words] names
    """
    lengths = np.bincount(places, minlength=chunks).astype(float)
    norm = k1 * (1 - b + b * lengths / max(lengths.mean(), 1e-9))
    scores = np.zeros(chunks)
    where: dict[str, list[int]] = {word: [] for word in query}
    for place, word in zip(places.tolist(), found, strict=True):
        if word in where:
            where[word].append(place)
    for word in sorted(where):
        frequency = np.bincount(np.array(where[word], dtype=int), minlength=chunks).astype(float)
        containing = np.count_nonzero(frequency)
        idf = np.log1p((chunks - containing + 0.5) / (containing + 0.5))
        scores += idf * frequency * (k1 + 1) / (frequency + norm)
    return scores

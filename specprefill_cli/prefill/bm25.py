"""Okapi BM25 of a question over the chunks of a document: what words alone say about where the answer is."""

from __future__ import annotations

import re

import numpy as np

# Scripts without spaces between words: each of their characters counts as a word.
UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
WORD = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+")


def chunk_bm25(
    question: str, text: str, offsets: np.ndarray, chunk_size: int, k1: float = 1.2, b: float = 0.75
) -> np.ndarray:
    """BM25 (Robertson and Zaragoza 2009) of a document's chunks for a question: [chunks].

    offsets: [n, 2] character ranges of the document's tokens in `text`; a word belongs to the chunk that it begins in
    """
    starts = offsets[::chunk_size, 0]
    chunks = len(starts)
    terms = sorted({word.lower() for word in WORD.findall(question)})
    places: dict[str, list[int]] = {term: [] for term in terms}
    word_starts = []
    for match in WORD.finditer(text, int(starts[0]), int(offsets[-1, 1])):
        word_starts.append(match.start())
        word = match.group().lower()
        if word in places:
            places[word].append(match.start())

    def count_by_chunk(positions: list[int]) -> np.ndarray:
        numbers = np.searchsorted(starts, np.array(positions, dtype=np.int64), side="right") - 1
        return np.bincount(numbers, minlength=chunks).astype(float)

    lengths = count_by_chunk(word_starts)
    norm = k1 * (1 - b + b * lengths / max(lengths.mean(), 1e-9))
    scores = np.zeros(chunks)
    for term in terms:
        frequency = count_by_chunk(places[term])
        containing = np.count_nonzero(frequency)
        idf = np.log1p((chunks - containing + 0.5) / (containing + 0.5))
        scores += idf * frequency * (k1 + 1) / (frequency + norm)
    return scores

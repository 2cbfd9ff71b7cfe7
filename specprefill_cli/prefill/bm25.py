"""BM25 of a question over the chunks of a document: what words alone say about where the answer stands."""

from __future__ import annotations

import re

import numpy as np

# Scripts that put no blanks between words: each of their characters counts as a word.
UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
WORD = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+")
SPACED, ALONE = re.compile(rf"[^\W{UNSPACED}]+"), re.compile(rf"[{UNSPACED}]")


def words(text: str) -> list[str]:
    return [word.lower() for word in WORD.findall(text)]


def chunk_bm25(
    question: str, text: str, offsets: np.ndarray, chunk_size: int, k1: float = 1.2, b: float = 0.75
) -> np.ndarray:
    """Okapi BM25 (Robertson and Zaragoza 2009) of a document's chunks for a question: [chunks].

    offsets: [n, 2] character ranges of the document's tokens in `text`. A word counts where it begins.
    """
    starts = offsets[::chunk_size, 0]
    first, end = int(starts[0]), int(offsets[-1, 1])
    chunks = len(starts)

    def by_chunk(places: np.ndarray) -> np.ndarray:
        return np.bincount(np.searchsorted(starts, places, side="right") - 1, minlength=chunks).astype(float)

    lengths = by_chunk(first + word_starts(text[first:end]))
    norm = k1 * (1 - b + b * lengths / max(lengths.mean(), 1e-9))
    scores = np.zeros(chunks)
    for _, places in sorted(occurrences(set(words(question)), text, first, end).items()):
        frequency = by_chunk(np.array(places, dtype=int))
        containing = np.count_nonzero(frequency)
        idf = np.log1p((chunks - containing + 0.5) / (containing + 0.5))
        scores += idf * frequency * (k1 + 1) / (frequency + norm)
    return scores


def occurrences(wanted: set[str], text: str, first: int, end: int) -> dict[str, list[int]]:
    """Where each of the wanted words stands in `text` between two characters; words that stand nowhere are left out."""
    found: dict[str, list[int]] = {}
    if not wanted:
        return found
    listed = "|".join(sorted(re.escape(word) for word in wanted))
    # Letters beside it make another word of a word, but not of a character that is one by itself.
    letter = rf"[^\W{UNSPACED}]"
    pattern = re.compile(
        rf"(?:(?<!{letter})|(?=[{UNSPACED}]))(?:{listed})(?:(?!{letter})|(?<=[{UNSPACED}]))", re.IGNORECASE
    )
    for match in pattern.finditer(text, first, end):
        word = match.group().lower()
        if word in wanted:
            found.setdefault(word, []).append(match.start())
    return found


def word_starts(text: str) -> np.ndarray:
    """The places in `text` at which words begin, ascending."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    distinct, numbers = np.unique(points, return_inverse=True)
    characters = [chr(point) for point in distinct]
    spaced = np.array([bool(SPACED.match(character)) for character in characters], dtype=bool)[numbers]
    alone = np.array([bool(ALONE.match(character)) for character in characters], dtype=bool)[numbers]
    begins = spaced & ~np.concatenate([[False], spaced[:-1]])
    return np.flatnonzero(begins | alone)

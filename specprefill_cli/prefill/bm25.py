"""BM25 of a question over the chunks of a document: what words alone say about where the answer stands."""

from __future__ import annotations

import re
from dataclasses import dataclass

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

    found = words_of(text[first:end])
    lengths = by_chunk(first + found.starts)
    norm = k1 * (1 - b + b * lengths / max(lengths.mean(), 1e-9))
    scores = np.zeros(chunks)
    for word in sorted(set(words(question))):
        frequency = by_chunk(first + found.places(word))
        containing = np.count_nonzero(frequency)
        idf = np.log1p((chunks - containing + 0.5) / (containing + 0.5))
        scores += idf * frequency * (k1 + 1) / (frequency + norm)
    return scores


@dataclass(frozen=True)
class Words:
    """The words of a text: where they start and how long they are, [n] each; points: [characters] of it, in lower case."""

    starts: np.ndarray
    lengths: np.ndarray
    points: np.ndarray

    def places(self, word: str) -> np.ndarray:
        """Where the word, in lower case, begins, ascending; narrowed down letter by letter."""
        found = self.starts[self.lengths == len(word)]
        for offset, character in enumerate(word):
            found = found[self.points[found + offset] == ord(character)]
        return found


def words_of(text: str) -> Words:
    """The words of a text, without a loop over them."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    # By a table of all characters up to the highest, where sorting would take longer than all else here.
    table = np.zeros(int(points.max(initial=0)) + 1, dtype=np.intp)
    table[points] = 1
    distinct = np.flatnonzero(table)
    table[distinct] = np.arange(len(distinct))
    numbers = table[points]
    characters = [chr(point) for point in distinct]
    spaced = np.array([bool(SPACED.match(character)) for character in characters], dtype=bool)[numbers]
    alone = np.array([bool(ALONE.match(character)) for character in characters], dtype=bool)[numbers]
    # The few characters that become two in lower case stay as they are.
    small = [character.lower() if len(character.lower()) == 1 else character for character in characters]
    edge = np.array([False])
    starts = np.flatnonzero((spaced & ~np.concatenate([edge, spaced[:-1]])) | alone)
    ends = np.flatnonzero((spaced & ~np.concatenate([spaced[1:], edge])) | alone)
    lowered = np.array([ord(character) for character in small], dtype=np.uint32)[numbers]
    return Words(starts, ends - starts + 1, lowered)

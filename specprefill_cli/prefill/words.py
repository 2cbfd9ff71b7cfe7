"""Words as BM25 compares them: English stems, without the words that say nothing about a subject."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from specprefill_cli.documents.sentences import FUNCTION_WORDS
from specprefill_cli.prefill.bm25 import WORD, bm25, index_of, rarity

if TYPE_CHECKING:
    from snowballstemmer.basestemmer import BaseStemmer

# Different words whose stems are kept.
KEPT_STEMS = 2**16


def word_scores(question: str, text: str, starts: np.ndarray, end: int) -> np.ndarray:
    """BM25 [n] of a text's passages, which begin at characters `starts` [n], by the stems of the question's content words.

    By all its words, as they are, where it has no content word.
    """
    telling = any(map(content_stem, WORD.findall(question)))
    return bm25(question, text, starts, end, normalise=content_stem if telling else str.lower)


def coverage(question: str, text: str, starts: np.ndarray, end: int) -> float:
    """How much of a question one place of a text says in the same words: 0 to 1.

    The share of the question's content words, weighted by their rarity, that stand in one passage and its two neighbours.
    """
    index = index_of(text, starts, end, content_stem)
    total, held = 0.0, np.zeros(len(starts))
    for word in sorted(set(map(content_stem, WORD.findall(question))) - {""}):
        frequency = index.frequency(word)
        weight = rarity(frequency)
        padded = np.pad(frequency, 1)
        held += weight * ((padded[:-2] + frequency + padded[2:]) > 0)
        total += weight
    return float(held.max(initial=0.0) / total) if total else 0.0


@lru_cache(KEPT_STEMS)
def content_stem(word: str) -> str:
    """The stem of a word; empty for words that say nothing about a subject."""
    word = word.lower()
    return "" if word in FUNCTION_WORDS else stemmer().stemWord(word)


@cache
def stemmer() -> BaseStemmer:
    """Snowball's English stemmer."""
    import snowballstemmer

    return snowballstemmer.stemmer("english")

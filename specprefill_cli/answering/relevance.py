"""How relevant each sentence of the documents is to a question: by importance, by words, and by the kind of answer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from specprefill_cli.documents.collection import Collection
from specprefill_cli.documents.sentences import sentence_ranges
from specprefill_cli.prefill.bm25 import KEPT_TEXTS
from specprefill_cli.prefill.selection import with_neighbours
from specprefill_cli.prefill.words import coverage, word_scores

# Tokens over which importance is averaged, so that a single token lifts no sentence.
SMOOTHING = 16
# Weight of the two sentences around each one.
NEIGHBOURS = 0.2
# What a sentence gains that holds the kind of thing that is asked for.
KIND_BONUS = 0.1
NUMBER = (
    r"\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|dozen|hundred|thousand|million|half)\b"
)
MONTH_OR_DAY = (
    r"(?:jan|feb|march|april|may|june|july|aug|sept|oct|nov|dec|mon|tues|wednes|thurs|fri|satur|sun)(?:\w*day)?"
)
# Questions, and what a sentence with their answer holds.
KINDS = tuple(
    (re.compile(question, re.IGNORECASE), re.compile(answer))
    for question, answer in (
        (r"\bhow (?:much|expensive)\b|\bwhat\b.{0,30}\b(?:cost|price|fee|charge|rent|salary)", r"\d|[£$€]"),
        (r"\bhow (?:many|old|long|far|often|tall|big|high|fast|large|deep|wide)\b", f"(?i:{NUMBER})"),
        (
            r"\bwhen\b|\b(?:what|which) (?:year|date|day|time|month)\b",
            rf"\d{{4}}|\d[:.]\d\d|(?i:\b{MONTH_OR_DAY}|noon)",
        ),
        (
            r"\bwho(?:m|se)?\b|\bwhere\b|\b(?:what|which) (?:company|firm|person|city|country)\b",
            r"(?<=[a-z,;] )[A-Z][a-z]",
        ),
        (r"\bwhy\b", r"(?i:\b(?:because|since|so that|in order|due to|owing to|reason|therefore|to)\b)"),
    )
)


@dataclass(frozen=True, kw_only=True)
class Sentences:
    """The sentences of a collection: character ranges [n, 2] in its text, and the relevance [n] of each, 0 to 1."""

    ranges: np.ndarray
    relevance: np.ndarray

    def at(self, character: int) -> int:
        """Index of the sentence that holds a character, or of the last one before it."""
        return max(0, int(np.searchsorted(self.ranges[:, 0], character, side="right")) - 1)

    def relevance_at(self, character: int) -> float:
        """Relevance of the sentence that holds a character."""
        return float(self.relevance[self.at(character)])

    @property
    def highest(self) -> float:
        """The highest relevance."""
        return float(self.relevance.max(initial=0.0))


@lru_cache(KEPT_TEXTS)
def ranges_of(text: str) -> np.ndarray:
    """The character ranges [n, 2] of a text's sentences; read-only, because all questions about it share them."""
    ranges = np.array(list(sentence_ranges(text)), dtype=np.int64).reshape(-1, 2)
    ranges.setflags(write=False)
    return ranges


def shares(scores: np.ndarray) -> np.ndarray:
    """Scores [n], not negative, as shares of the highest."""
    return scores / max(scores.max(), 1e-12)


def rank_sentences(collection: Collection, question: str, offsets: np.ndarray, importance: Tensor | None) -> Sentences:
    """Score every sentence by the importance of its tokens, by BM25 of the question's words, and by the kind of answer.

    BM25 counts by how much of the question one place says in the same words.
    offsets: [n, 2] character range of each document token; importance: [n], or None where nothing was scored
    """
    text = collection.text
    ranges = ranges_of(text)
    if not len(ranges) or not len(offsets):
        return Sentences(ranges=ranges, relevance=np.zeros(len(ranges)))
    score = shares(word_scores(question, text, ranges[:, 0], len(text)))
    if importance is not None:
        smooth = np.convolve(importance.double().numpy(), np.full(SMOOTHING, 1 / SMOOTHING), "same")[: len(offsets)]
        first = np.searchsorted(offsets[:, 1], ranges[:, 0], side="right").clip(max=len(offsets) - 1)
        # The square root brings a few large values nearer to the rest, as words are.
        important = shares(np.sqrt(np.maximum.reduceat(smooth, first).clip(min=0)))
        weight = coverage(question, text, ranges[:, 0], len(text))
        score = (weight * score + important) / (weight + 1)
    kind = next((answer for asked, answer in KINDS if asked.search(question)), None)
    if kind is not None:
        score += KIND_BONUS * np.array([kind.search(text, start, end) is not None for start, end in ranges.tolist()])
    relevance = with_neighbours(torch.from_numpy(score), NEIGHBOURS).numpy() / ((1 + KIND_BONUS) * (1 + 2 * NEIGHBOURS))
    return Sentences(ranges=ranges, relevance=relevance)

"""The passages of the documents that most likely hold the answer: whole sentences, by importance and by words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specprefill_cli.documents.collection import Collection
from specprefill_cli.documents.sentences import sentence_ranges
from specprefill_cli.prefill.bm25 import bm25
from specprefill_cli.prefill.selection import with_neighbours

# Tokens over which importance is averaged, so that a single token lifts no sentence.
SMOOTHING = 16
# Weight of the two sentences around each one.
NEIGHBOURS = 0.2
# Sentences of a passage, and of all passages beyond one each.
LONGEST_PASSAGE, SPARE_SENTENCES = 3, 1
# A heading says little without the sentence behind it.
HEADING_WORDS = 6


@dataclass(frozen=True, kw_only=True)
class Passage:
    """Consecutive sentences of one document: its name, 1-based page, character range [start, end) and text.

    importance: 0 to 1, that of its best sentence; number: which of the documents, from 0
    """

    document: str
    page: int
    start: int
    end: int
    text: str
    importance: float
    number: int = 0


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

    def opening(self, text: str) -> int:
        """Where the first sentence begins that is more than a heading; text: the collection's."""
        starts = (int(start) for start, end in self.ranges if len(text[start:end].split()) > HEADING_WORDS)
        return next(starts, 0)


def rank_sentences(collection: Collection, question: str, offsets: np.ndarray, importance: Tensor | None) -> Sentences:
    """Score every sentence by the importance of its tokens and by BM25 of the question's words.

    offsets: [n, 2] character range of each document token; importance: [n], or None where nothing was scored
    """
    ranges = np.array(list(sentence_ranges(collection.text)), dtype=np.int64).reshape(-1, 2)
    if not len(ranges) or not len(offsets):
        return Sentences(ranges=ranges, relevance=np.zeros(len(ranges)))
    signals = [bm25(question, collection.text, ranges[:, 0], len(collection.text))]
    if importance is not None:
        smooth = np.convolve(importance.double().numpy(), np.full(SMOOTHING, 1 / SMOOTHING), "same")[: len(offsets)]
        first = np.searchsorted(offsets[:, 1], ranges[:, 0], side="right").clip(max=len(offsets) - 1)
        # The square root brings a few large values nearer to the rest, as words are.
        signals.append(np.sqrt(np.maximum.reduceat(smooth, first).clip(min=0)))
    mean = np.mean([signal / max(signal.max(), 1e-12) for signal in signals], axis=0)
    return Sentences(
        ranges=ranges, relevance=with_neighbours(torch.from_numpy(mean), NEIGHBOURS).numpy() / (1 + 2 * NEIGHBOURS)
    )


def best_passages(
    collection: Collection, sentences: Sentences, count: int, leading: Sequence[int] = ()
) -> list[Passage]:
    """Return up to `count` passages, the most relevant ones first.

    leading: characters of the collection's text whose sentences come before all others
    """
    if not len(sentences.ranges):
        return []
    order = [*map(sentences.at, leading), *np.argsort(-sentences.relevance, kind="stable").tolist()]
    runs: list[tuple[int, int]] = []
    for index in order:
        if len(runs) >= count or sum(last - first for first, last in runs) >= count + SPARE_SENTENCES:
            break
        add_sentence(runs, index, collection, sentences)
    return [as_passage(collection, sentences, run) for run in runs]


def add_sentence(runs: list[tuple[int, int]], index: int, collection: Collection, sentences: Sentences) -> None:
    """Join a sentence to the run [first, last) of sentences beside it, or begin a new run."""
    for place, (first, last) in enumerate(runs):
        if first <= index < last:
            return
        longer = (min(first, index), max(last, index + 1))
        if longer[1] - longer[0] == last - first + 1 <= LONGEST_PASSAGE and joined(collection, sentences, longer):
            runs[place] = longer
            return
    text = collection.text[slice(*sentences.ranges[index])]
    heading = len(text.split()) <= HEADING_WORDS and text[-1] not in ".!?" and index + 1 < len(sentences.ranges)
    runs.append((index, index + 1 + (heading and joined(collection, sentences, (index, index + 2)))))


def joined(collection: Collection, sentences: Sentences, run: tuple[int, int]) -> bool:
    """Whether a run of sentences lies within one document."""
    start, end = span(sentences, run)
    return len(collection.parts(start, end)) == 1


def span(sentences: Sentences, run: tuple[int, int]) -> tuple[int, int]:
    """The character range of a run of sentences."""
    return int(sentences.ranges[run[0], 0]), int(sentences.ranges[run[1] - 1, 1])


def as_passage(collection: Collection, sentences: Sentences, run: tuple[int, int]) -> Passage:
    """A run of sentences as a passage."""
    start, end = span(sentences, run)
    document, first, last = collection.parts(start, end)[0]
    return Passage(
        document=document.name,
        page=next(iter(document.pages_between(first, last)), 1),
        start=first,
        end=last,
        text=collection.text[start:end],
        importance=round(float(sentences.relevance[slice(*run)].max()), 4),
        number=collection.documents.index(document),
    )

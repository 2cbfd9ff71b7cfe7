"""The passages of the documents that most likely hold the answer: whole sentences, the most relevant ones first."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from specprefill_cli.answering.relevance import Sentences
from specprefill_cli.documents.collection import Collection
from specprefill_cli.record import Passage

# Sentences of a passage, and of all passages beyond one each.
LONGEST_PASSAGE, SPARE_SENTENCES = 3, 1
# Words for each passage asked for; the first ones take in the sentences beside them while all together have room.
WORDS_PER_PASSAGE = 39
GROWING_PASSAGES = 2
# A quoted sentence comes first from this share of the highest relevance on; below it the quote is doubtful.
TRUSTED_QUOTE = 0.7


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
    while grow(runs, collection, sentences, WORDS_PER_PASSAGE * count):
        pass
    return [as_passage(collection, sentences, run) for run in runs]


def trusted_quotes(sentences: Sentences, quotes: Sequence[int]) -> list[int]:
    """The first of the quotes, given by their characters, where its sentence is nearly as relevant as the best one."""
    return [place for place in quotes[:1] if sentences.relevance_at(place) >= TRUSTED_QUOTE * sentences.highest]


def add_sentence(runs: list[tuple[int, int]], index: int, collection: Collection, sentences: Sentences) -> None:
    """Join a sentence to the run [first, last) of sentences beside it, or begin a new run."""
    for place, (first, last) in enumerate(runs):
        if first <= index < last:
            return
        longer = (min(first, index), max(last, index + 1))
        if longer[1] - longer[0] == last - first + 1 <= LONGEST_PASSAGE and joined(collection, sentences, longer):
            runs[place] = longer
            return
    runs.append((index, index + 1))


def grow(runs: list[tuple[int, int]], collection: Collection, sentences: Sentences, most_words: int) -> bool:
    """Add the more relevant neighbour to each of the first runs, as far as all have at most `most_words`; whether any grew."""
    grew = False
    for place, (first, last) in enumerate(runs[:GROWING_PASSAGES]):
        taken = {index for run in runs for index in range(*run)}
        spare = most_words - sum(words(collection, sentences, run) for run in runs)
        longer = [
            (sentences.relevance[index], run)
            for index, run in ((last, (first, last + 1)), (first - 1, (first - 1, last)))
            if last - first < LONGEST_PASSAGE
            and 0 <= index < len(sentences.ranges)
            and index not in taken
            and words(collection, sentences, (index, index + 1)) <= spare
            and joined(collection, sentences, run)
        ]
        if longer:
            runs[place] = max(longer)[1]
            grew = True
    return grew


def words(collection: Collection, sentences: Sentences, run: tuple[int, int]) -> int:
    """The number of words in a run of sentences."""
    return len(collection.text[slice(*span(sentences, run))].split())


def joined(collection: Collection, sentences: Sentences, run: tuple[int, int]) -> bool:
    """Whether a run of sentences lies on one page of one document, so that a passage names the page it stands on."""
    touched = collection.pages_by_document(*span(sentences, run))
    return len(touched) == 1 and len(touched[0].pages) <= 1


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
        # By place, because the same document may be there twice.
        number=bisect_right(collection.starts, start) - 1,
    )

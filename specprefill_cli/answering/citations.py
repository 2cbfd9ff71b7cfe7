"""Where an answer stands in the documents: computed from its text and the kept chunks, never asked of the model."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from specprefill_cli.documents.collection import Collection
from specprefill_cli.prefill.fates import Fate, Plan

LONGEST_ANSWER = 300
SHORTEST_QUOTE = 3
# Bounds the search for a quote, which is quadratic in it.
MOST_QUOTED_WORDS = 40
NOT_FOUND = "not found"
# Answers that stand nowhere, though the words do.
NOWHERE = ("yes", "no")
# What chat models put around an answer.
MARKS = " \t\n.,;:!?\"'“”*_`"
MOST_CITATIONS = 3
SENTENCE_END = re.compile(r"[.!?](?=\s)|\n")


@dataclass(frozen=True)
class Citation:
    """One place: document name, 1-based page, character range [start, end) in the document, and the sentence there.

    number: which of the documents, from 0; names may be the same
    """

    document: str
    page: int
    start: int
    end: int
    text: str
    number: int = 0


def cite(
    answer: str, collection: Collection, plan: Plan, offsets: np.ndarray, importance: Tensor | None
) -> list[Citation]:
    """Places where the answer's words stand in text that the target saw, the most important first.

    offsets: [n, 2] character range of each document token; importance: [n], or None where nothing was scored
    """
    said = answer.strip(MARKS)
    if not len(offsets) or said.lower().startswith(NOT_FOUND) or said.lower() in NOWHERE:
        return []
    whole = occurrences(said, collection.text) if len(said) <= LONGEST_ANSWER else []
    places = whole or longest_quote(said, collection.text)
    seen = np.zeros(len(offsets), dtype=bool)
    for span in plan.spans:
        if span.fate is not Fate.DROP:
            seen[span.start - plan.document[0] : span.end - plan.document[0]] = True
    weights = importance.numpy() if importance is not None else np.zeros(len(offsets))
    ranked = []
    for start, end in places:
        tokens = slice(np.searchsorted(offsets[:, 1], start, side="right"), np.searchsorted(offsets[:, 0], end))
        if seen[tokens].any():
            ranked.append((-float(weights[tokens].max(initial=0.0)), start, end))
    return [citation(collection, start, end) for _, start, end in sorted(ranked)[:MOST_CITATIONS]]


def occurrences(answer: str, text: str) -> list[tuple[int, int]]:
    """Character ranges where the answer stands as whole words and whole numbers, case and white space aside."""
    words = answer.strip(MARKS).split()
    if not words:
        return []
    pattern = r"\s+".join(re.escape(word) for word in words)
    # 12 is not what stands in 12,000 or 3.12.
    before = r"(?<!\d[.,])" if words[0][0].isdigit() else ""
    after = r"(?![.,]\d)" if words[-1][-1].isdigit() else ""
    whole = rf"(?<!\w){before}{pattern}(?!\w){after}"
    return [match.span() for match in re.finditer(whole, text, re.IGNORECASE)]


def longest_quote(answer: str, text: str) -> list[tuple[int, int]]:
    """Character ranges of the longest run of at least SHORTEST_QUOTE words of an answer that stands in the text."""
    words = answer.split()[:MOST_QUOTED_WORDS]
    folded = " ".join(text.lower().split())
    for size in range(len(words), SHORTEST_QUOTE - 1, -1):
        for first in range(len(words) - size + 1):
            quote = " ".join(words[first : first + size])
            # The cheap look first; it takes parts of words for words.
            if quote.lower() in folded and (places := occurrences(quote, text)):
                return places
    return []


def citation(collection: Collection, start: int, end: int) -> Citation:
    document, low, high = collection.parts(start, end)[0]
    pages = document.pages_between(low, high)
    first, last = sentence(document.text, low, high)
    number = next(place for place, one in enumerate(collection.documents) if one is document)
    return Citation(document.name, pages[0] if pages else 1, low, high, document.text[first:last].strip(), number)


def sentence(text: str, start: int, end: int, widest: int = 200) -> tuple[int, int]:
    """The sentence or line around characters [start, end), at most `widest` characters to either side."""
    before = [match.end() for match in SENTENCE_END.finditer(text, max(0, start - widest), start)]
    after = SENTENCE_END.search(text, end, min(len(text), end + widest))
    first = before[-1] if before else max(0, start - widest)
    return first, after.end() if after else min(len(text), end + widest)

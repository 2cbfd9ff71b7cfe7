"""Where an answer stands in the documents: computed from its text and the kept chunks, never asked of the model."""

from __future__ import annotations

import re

import numpy as np
from torch import Tensor

from specprefill_cli.documents.document import Collection
from specprefill_cli.prefill.bm25 import UNSPACED
from specprefill_cli.prefill.fates import Plan
from specprefill_cli.record import NOT_FOUND, Citation, Fate

LONGEST_ANSWER = 300
SHORTEST_QUOTE = 3
# Words of an answer that are compared with the documents.
MOST_QUOTED_WORDS = 40
# Words as they are quoted: each character of a script without spaces is one.
QUOTED_WORD = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+")
# Answers that are no quotes, though the documents hold the words.
UNQUOTED = ("yes", "no")
# Punctuation and Markdown that chat models put around an answer.
MARKS = " \t\n.,;:!?\"'“”*_`"
MOST_CITATIONS = 3
SENTENCE_END = re.compile(r"[.!?](?=\s)|\n")
# Characters of a sentence that are shown to either side of the answer.
WIDEST_SENTENCE = 200


def cite(
    answer: str, collection: Collection, plan: Plan, offsets: np.ndarray, importance: Tensor | None
) -> list[Citation]:
    """Find the answer's words in text that the target has seen; the most important places come first.

    offsets: [n, 2] character range of each document token; importance: [n], or None where nothing was scored
    """
    quoted = answer.strip(MARKS)
    if not len(offsets) or quoted.lower().startswith(NOT_FOUND) or quoted.lower() in UNQUOTED:
        return []
    verbatim = occurrences(quoted, collection.text) if len(quoted) <= LONGEST_ANSWER else []
    seen = np.zeros(len(offsets), dtype=bool)
    for span in plan.spans:
        if span.fate is not Fate.DROP:
            seen[span.start - plan.document[0] : span.end - plan.document[0]] = True
    weights = importance.numpy() if importance is not None else np.zeros(len(offsets))
    ranked = []
    for start, end in verbatim or longest_quote(quoted, collection.text):
        tokens = slice(np.searchsorted(offsets[:, 1], start, side="right"), np.searchsorted(offsets[:, 0], end))
        if seen[tokens].any():
            ranked.append((-float(weights[tokens].max(initial=0.0)), start, end))
    return [citation(collection, start, end) for _, start, end in sorted(ranked)[:MOST_CITATIONS]]


def occurrences(answer: str, text: str) -> list[tuple[int, int]]:
    """Return the character ranges where the answer stands as whole words and numbers; case and white space may differ."""
    words = answer.strip(MARKS).split()
    if not words:
        return []
    pattern = r"\s+".join(re.escape(word) for word in words)
    first, last = words[0][0], words[-1][-1]
    # Scripts without spaces show no word boundaries.
    before = "" if re.match(f"[{UNSPACED}]", first) else r"(?<!\w)"
    after = "" if re.match(f"[{UNSPACED}]", last) else r"(?!\w)"
    # 12 does not stand in 12,000 or 3.12.
    before += r"(?<!\d[.,])" if first.isdigit() else ""
    after += r"(?![.,]\d)" if last.isdigit() else ""
    return [match.span() for match in re.finditer(f"{before}{pattern}{after}", text, re.IGNORECASE)]


def longest_quote(answer: str, text: str) -> list[tuple[int, int]]:
    """Return the character ranges of the longest run of the answer's words, `SHORTEST_QUOTE` or more, in the text."""
    words = list(QUOTED_WORD.finditer(answer))[:MOST_QUOTED_WORDS]
    if len(words) < SHORTEST_QUOTE:
        return []
    folded = " ".join(text.lower().split())

    def quote(first: int, end: int) -> str:
        return " ".join(answer[words[first].start() : words[end - 1].end()].split())

    # A cheap test first: it also accepts parts of words. A run within one that the text holds need not be searched.
    ends, end = [], 0
    for first in range(len(words)):
        end = max(end, first)
        while end < len(words) and quote(first, end + 1).lower() in folded:
            end += 1
        ends.append(end)
    longest = max(end - first for first, end in enumerate(ends))
    runs = [
        (first, first + size)
        for size in range(longest, SHORTEST_QUOTE - 1, -1)
        for first, end in enumerate(ends)
        if first + size <= end
    ]
    return next(filter(None, (occurrences(quote(*run), text) for run in runs)), [])


def citation(collection: Collection, start: int, end: int) -> Citation:
    """The citation of characters [start, end) of the collection's text, with the sentence or line around them."""
    number, first, last = collection.parts(start, end)[0]
    document = collection.documents[number]
    pages = document.pages_between(first, last)
    left, right = max(0, first - WIDEST_SENTENCE), min(len(document.text), last + WIDEST_SENTENCE)
    before = [match.end() for match in SENTENCE_END.finditer(document.text, left, first)]
    after = SENTENCE_END.search(document.text, last, right)
    text = document.text[before[-1] if before else left : after.end() if after else right].strip()
    return Citation(document.name, pages[0] if pages else 1, first, last, text, number)

"""Where things stand in the documents: an answer's citations, a plan's spans with their pages, and chunks for a page."""

import re
from difflib import SequenceMatcher
from itertools import chain, pairwise
from typing import Any

import numpy as np
from torch import Tensor

from specprefill_cli.documents.document import Collection
from specprefill_cli.documents.language import UNSPACED, WORD, says_not_found
from specprefill_cli.documents.sentences import sentences_around
from specprefill_cli.prefill.fates import Plan, Span
from specprefill_cli.prefill.selection import chunk_scores
from specprefill_cli.prompting import Prompt
from specprefill_cli.record import Cell, Citation, Fate, SpanRecord

LONGEST_ANSWER = 300
SHORTEST_QUOTE = 3
# Number of an answer's leading words that are compared with the documents.
MOST_QUOTED_WORDS = 40
# Answers that are never quotes, even if the documents hold these words.
UNQUOTED = ("yes", "no")
# Punctuation and Markdown that chat models put around an answer.
MARKS = " \t\n.,;:!?\"'“”*_`"
MOST_CITATIONS = 3


def cite(
    answer: str, collection: Collection, plan: Plan, offsets: np.ndarray, importance: Tensor | None
) -> list[Citation]:
    """Find the answer's words in what the target has seen, most important first; offsets [n, 2], importance [n] of tokens."""
    stripped = answer.strip(MARKS)
    if not len(offsets) or says_not_found(stripped) or stripped.lower() in UNQUOTED:
        return []
    verbatim = occurrences(stripped, collection.text) if len(stripped) <= LONGEST_ANSWER else []
    seen = np.zeros(len(offsets), dtype=bool)
    for span in plan.spans:
        if span.fate is not Fate.DROP:
            seen[span.start - plan.document[0] : span.end - plan.document[0]] = True
    token_importance = importance.numpy() if importance is not None else np.zeros(len(offsets))
    ranked_places = []
    for start, end in verbatim or longest_quote(stripped, collection.text):
        tokens = slice(np.searchsorted(offsets[:, 1], start, side="right"), np.searchsorted(offsets[:, 0], end))
        if seen[tokens].any():
            ranked_places.append((-float(token_importance[tokens].max(initial=0.0)), start, end))
    return [citation(collection, start, end) for _, start, end in sorted(ranked_places)[:MOST_CITATIONS]]


def occurrences(answer: str, text: str) -> list[tuple[int, int]]:
    """Find the answer as whole words and numbers and return character ranges; case and white space may differ."""
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
    """Return the character ranges in the text of the answer's longest quoted run, `SHORTEST_QUOTE` words or more."""
    answer_words = [word.lower() for word in WORD.findall(answer)[:MOST_QUOTED_WORDS]]
    places = [match.span() for match in WORD.finditer(text)]
    text_words = [text[start:end].lower() for start, end in places]
    quote = SequenceMatcher(None, text_words, answer_words, autojunk=False).find_longest_match()
    if quote.size < SHORTEST_QUOTE:
        return []
    return occurrences(text[places[quote.a][0] : places[quote.a + quote.size - 1][1]], text)


def citation(collection: Collection, start: int, end: int) -> Citation:
    """Cite characters [start, end) of the collection's text, with the sentences around them."""
    number, first, last = collection.ranges_by_document(start, end)[0]
    document = collection.documents[number]
    pages = document.pages_between(first, last)
    text = document.text[slice(*sentences_around(document.text, first, last))]
    return Citation(document.name, pages[0] if pages else 1, first, last, text, number)


def touched_pages(collection: Collection, start: int, end: int) -> dict[str, Any]:
    """The pages of the characters [start, end), as fields of a stretch."""
    documents = collection.pages_by_document(start, end)
    return {"pages": list(dict.fromkeys(chain(*(touched.pages for touched in documents)))), "documents": documents}


def span_records(collection: Collection, prompt: Prompt, plan: Plan) -> list[SpanRecord]:
    """List the plan's spans with the pages that they touch."""
    records = []
    for span in plan.spans:
        first, last = span.start - prompt.document[0], span.end - prompt.document[0] - 1
        pages = touched_pages(collection, int(prompt.offsets[first, 0]), int(prompt.offsets[last, 1]))
        records.append(SpanRecord(start=span.start, end=span.end, fate=span.fate, risk=span.risk, **pages))
    return records


def document_cells(
    collection: Collection, offsets: np.ndarray, plan: Plan, importance: Tensor | None, chunk_size: int
) -> list[Cell]:
    """Divide the text into cells without gaps; offsets [n, 2] and importance [n] (or None) of the document's tokens."""
    token_count, first_token = len(offsets), plan.document[0]
    if not token_count:
        return []
    scores = None if importance is None else chunk_scores(importance, chunk_size).tolist()
    spans = {span.start - first_token: span for span in plan.spans}
    edges = sorted({*range(0, token_count, chunk_size), *spans, token_count})
    # Two tokens may share a character and so its range: make the starts ascending.
    starts = np.maximum.accumulate(offsets[:, 0])
    characters = [0, *(int(starts[edge]) for edge in edges[1:-1]), len(collection.text)]
    cells, span = [], Span(first_token, first_token + token_count, Fate.RECOMPUTE)
    for (low, high), (start, end) in zip(pairwise(edges), pairwise(characters), strict=True):
        span = spans.get(low, span)
        cells.append(
            Cell(
                start=first_token + low,
                end=first_token + high,
                text_start=start,
                text_end=end,
                fate=span.fate,
                importance=scores[low // chunk_size] if scores is not None else None,
                **touched_pages(collection, start, end),
            )
        )
    return cells

"""The document as spans with their pages, and as cells: chunks with their characters, fates and importance."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from specprefill_cli.prefill.fates import Plan, Span
from specprefill_cli.prefill.selection import chunk_scores
from specprefill_cli.record import Cell, Fate, SpanRecord

if TYPE_CHECKING:
    from torch import Tensor

    from specprefill_cli.documents.document import Collection
    from specprefill_cli.prompting import Prompt


def span_records(collection: Collection, prompt: Prompt, plan: Plan) -> list[SpanRecord]:
    """List the plan's spans with the pages that they touch."""
    records = []
    for span in plan.spans:
        first, last = span.start - prompt.document[0], span.end - prompt.document[0] - 1
        start, end = int(prompt.offsets[first, 0]), int(prompt.offsets[last, 1])
        records.append(
            SpanRecord(
                start=span.start,
                end=span.end,
                fate=span.fate,
                pages=collection.pages(start, end),
                risk=span.risk,
                documents=collection.pages_by_document(start, end),
            )
        )
    return records


def document_cells(
    collection: Collection, offsets: np.ndarray, plan: Plan, importance: Tensor | None, chunk_size: int
) -> list[Cell]:
    """Divide the collection's text into cells without gaps.

    offsets: [n, 2] character range of each document token; importance: [n] or None
    """
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
        score = scores[low // chunk_size] if scores is not None else None
        cells.append(
            Cell(
                start=first_token + low,
                end=first_token + high,
                text_start=start,
                text_end=end,
                pages=collection.pages(start, end),
                documents=collection.pages_by_document(start, end),
                fate=span.fate,
                importance=score,
            )
        )
    return cells

"""The document as spans with their pages, and as cells: its chunks with their characters, fates and importance."""

from __future__ import annotations

from itertools import pairwise
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from specprefill_cli.prefill.fates import Plan, Span
from specprefill_cli.prefill.selection import add_neighbours, chunk_scores, rank_chunks
from specprefill_cli.record import LEVELS, Cell, Fate, SpanRecord

if TYPE_CHECKING:
    from torch import Tensor

    from specprefill_cli.documents.document import Collection
    from specprefill_cli.prompting import Prompt


def span_records(collection: Collection, prompt: Prompt, plan: Plan) -> list[SpanRecord]:
    """The plan's spans with the pages that they touch."""
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
    collection: Collection,
    offsets: np.ndarray,
    plan: Plan,
    importance: Tensor | None,
    chunk_size: int,
    neighbours: float = 0.0,
) -> list[Cell]:
    """Divide the collection's text into cells without holes.

    offsets: [n, 2] character range of each document token; importance: [n] or None
    neighbours: weight of a chunk's neighbours in its place, as selection ranks chunks
    """
    count, first = len(offsets), plan.document[0]
    if not count:
        return []
    scores: list[float] = []
    places: dict[int, int] = {}
    if importance is not None:
        by_chunk = chunk_scores(importance, chunk_size)
        scores = by_chunk.tolist()
        ranked = rank_chunks(add_neighbours(by_chunk, neighbours)).tolist()
        places = {chunk: place for place, chunk in enumerate(ranked, start=1)}
    largest = max(scores, default=0.0)
    spans = {span.start - first: span for span in plan.spans}
    edges = sorted({*range(0, count, chunk_size), *spans, count})
    # The bytes of one character may be two tokens with the same range, so starts are made ascending.
    starts = np.maximum.accumulate(offsets[:, 0])
    characters = [0, *(int(starts[edge]) for edge in edges[1:-1]), len(collection.text)]
    cells, span = [], Span(first, first + count, Fate.RECOMPUTE)
    for (low, high), (start, end) in zip(pairwise(edges), pairwise(characters), strict=True):
        span = spans.get(low, span)
        chunk = low // chunk_size
        score = scores[chunk] if scores else None
        cells.append(
            Cell(
                start=start,
                end=end,
                tokens=high - low,
                fate=span.fate,
                importance=score,
                place=places.get(chunk),
                # By the root, because few chunks hold most of the importance.
                level=round(LEVELS * sqrt(max(score, 0.0) / largest)) if score is not None and largest > 0 else 0,
            )
        )
    return cells

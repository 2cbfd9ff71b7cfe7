"""The document as cells: its chunks with their characters, fates and importance, for strips and pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from specprefill_cli.prefill.fates import Fate, Plan, Span
from specprefill_cli.prefill.selection import chunk_scores, rank, with_neighbours

if TYPE_CHECKING:
    from torch import Tensor

    from specprefill_cli.answering.stream import AnswerStream
    from specprefill_cli.documents.collection import Collection
    from specprefill_cli.documents.document import Document

# Steps of shading, from none to full.
LEVELS = 8


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A chunk, or the part of one that has one fate: characters [start, end) of the collection's text.

    tokens: how many it has
    importance: mean over the chunk's tokens; place: 1 for the most important chunk; both None where nothing was scored
    level: its shading, from 0 to `LEVELS`; layers: as in `Span`
    """

    start: int
    end: int
    tokens: int
    fate: Fate
    importance: float | None
    place: int | None
    level: int
    layers: int | None = None


def stream_cells(stream: AnswerStream) -> list[Cell]:
    """Return the cells of an answer."""
    request, prefilled = stream.request, stream.prefilled
    return document_cells(
        stream.collection,
        request.prompt.offsets,
        prefilled.plan,
        prefilled.importance,
        request.chunk_size,
        prefilled.neighbours,
    )


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
    scores, places = _ranked_chunks(importance, chunk_size, neighbours)
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
                level=_level(score, largest),
                layers=span.layers,
            )
        )
    return cells


def _ranked_chunks(importance: Tensor | None, chunk_size: int, neighbours: float) -> tuple[list[float], dict[int, int]]:
    """Return the score of every chunk, and its place by chunk; both empty where nothing was scored."""
    if importance is None:
        return [], {}
    scores = chunk_scores(importance, chunk_size)
    ranked = rank(with_neighbours(scores, neighbours)).tolist()
    return scores.tolist(), {chunk: place for place, chunk in enumerate(ranked, start=1)}


def _level(score: float | None, largest: float) -> int:
    """Return the shading of a score: by its root, because few chunks hold most of the importance."""
    return round(LEVELS * sqrt(max(score, 0.0) / largest)) if score is not None and largest > 0 else 0


@dataclass(frozen=True, kw_only=True)
class PageCells:
    """One page of one document: characters [start, end) of the collection's text, and the indices of its cells."""

    document: Document
    number: int
    start: int
    end: int
    cells: tuple[int, ...]


def cells_by_page(collection: Collection, cells: Sequence[Cell]) -> list[PageCells]:
    """Return every page in order with the indices of its cells; a cell across two pages belongs to both."""
    pages, position = [], 0
    for document, origin in zip(collection.documents, collection.starts, strict=True):
        for page in document.pages:
            start, end = origin + page.start, origin + page.end
            while position < len(cells) and cells[position].end <= start:
                position += 1
            last = position
            while start < end and last < len(cells) and cells[last].start < end:
                last += 1
            touching = tuple(range(position, last))
            pages.append(PageCells(document=document, number=page.number, start=start, end=end, cells=touching))
    return pages

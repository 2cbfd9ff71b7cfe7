"""The document as cells: its chunks with their characters, fates and importance, for strips and pages."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from specprefill_cli.prefill.fates import Fate, Plan
from specprefill_cli.prefill.selection import chunk_scores, rank, with_neighbours

if TYPE_CHECKING:
    from torch import Tensor

    from specprefill_cli.answering.stream import AnswerStream
    from specprefill_cli.documents.collection import Collection
    from specprefill_cli.documents.document import Document

# Steps of shading, from none to full.
LEVELS = 8


@dataclass(frozen=True)
class Cell:
    """A chunk, or the part of one that has one fate: characters [start, end) of the collection's text.

    tokens: how many; importance: mean over the chunk's tokens, place: 1 for the most important chunk (both None where
    nothing was scored); level: 0 to LEVELS, how strongly it is shaded
    """

    start: int
    end: int
    tokens: int
    fate: Fate
    importance: float | None
    place: int | None
    level: int


def document_cells(
    collection: Collection,
    offsets: np.ndarray,
    plan: Plan,
    importance: Tensor | None,
    chunk_size: int,
    neighbours: float = 0.0,
) -> list[Cell]:
    """Cells that divide the collection's text without holes.

    offsets: [n, 2] character range of each document token; importance: [n] or None
    neighbours: weight of the chunks beside it in a chunk's place, as selection ranks them
    """
    count, first = len(offsets), plan.document[0]
    if not count:
        return []
    scores, places = scored_chunks(importance, chunk_size, neighbours)
    largest = max(scores, default=0.0)
    fates = {span.start - first: span.fate for span in plan.spans}
    edges = sorted({*range(0, count, chunk_size), *fates, count})
    # Bytes of one character may be two tokens with the same range, so starts are made ascending.
    starts = np.maximum.accumulate(offsets[:, 0])
    characters = [0, *(int(starts[edge]) for edge in edges[1:-1]), len(collection.text)]
    cells, fate = [], Fate.RECOMPUTE
    for (low, high), (start, end) in zip(pairwise(edges), pairwise(characters), strict=True):
        fate = fates.get(low, fate)
        chunk = low // chunk_size
        score = scores[chunk] if scores else None
        place = places[chunk] if scores else None
        cells.append(Cell(start, end, high - low, fate, score, place, shade(score, largest)))
    return cells


def scored_chunks(importance: Tensor | None, chunk_size: int, neighbours: float) -> tuple[list[float], dict[int, int]]:
    """Score of every chunk, and its place in the ranking by chunk; both empty where nothing was scored."""
    if importance is None:
        return [], {}
    scores = chunk_scores(importance, chunk_size)
    ranked = rank(with_neighbours(scores, neighbours)).tolist()
    return scores.tolist(), {chunk: place for place, chunk in enumerate(ranked, start=1)}


def shade(score: float | None, largest: float) -> int:
    """The level of a score: its root, because few chunks hold most of the importance."""
    return round(LEVELS * sqrt(max(score, 0.0) / largest)) if score is not None and largest > 0 else 0


def stream_cells(stream: AnswerStream) -> list[Cell]:
    """The cells of an answer that was given."""
    request, prefilled = stream.request, stream.prefilled
    return document_cells(
        stream.collection,
        request.prompt.offsets,
        prefilled.plan,
        prefilled.importance,
        request.chunk_size,
        prefilled.neighbours,
    )


@dataclass(frozen=True)
class PageCells:
    """One page of one document: characters [start, end) of the collection's text, and the cells that touch it."""

    document: Document
    number: int
    start: int
    end: int
    cells: tuple[int, ...]


def cells_by_page(collection: Collection, cells: list[Cell]) -> list[PageCells]:
    """Every page in order with the indices of its cells; a cell across two pages belongs to both."""
    pages, position = [], 0
    for document, origin in zip(collection.documents, collection.starts, strict=True):
        for page in document.pages:
            start, end = origin + page.start, origin + page.end
            while position < len(cells) and cells[position].end <= start:
                position += 1
            touching, index = [], position
            while start < end and index < len(cells) and cells[index].start < end:
                touching.append(index)
                index += 1
            pages.append(PageCells(document, page.number, start, end, tuple(touching)))
    return pages

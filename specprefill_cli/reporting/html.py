"""One self-contained page: the document as each mode treated it, the answers, and where the time went.

The page needs no script and no network, and its content security policy forbids both. Every value passes `printable` and
is escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specprefill_cli.documents.document import Collection, Document
from specprefill_cli.record import PHASES, UPSTREAM, Cell, Comparison, Fate, ModeAnswer
from specprefill_cli.reporting.evidence import confidence_lines
from specprefill_cli.reporting.safe import printable
from specprefill_cli.reporting.table import answer_facts, difference_facts, phase_name, present, seconds

if TYPE_CHECKING:
    from jinja2 import Environment

# Labels of figures that are not on a card but in its heading, or once on the page.
NOT_ON_A_CARD = ("mode", "peak memory", *Fate)
# The phases of the bars, each by the number of its colour.
BARS = (*PHASES, UPSTREAM)
# Steps of a cell's shading, from none to full.
LEVELS = 8
TEMPLATES = Path(__file__).resolve().parent / "page"


@dataclass(frozen=True)
class PageCells:
    """One page of one document: characters [start, end) of the collection's text, and the indices of its cells."""

    document: Document
    number: int
    start: int
    end: int
    cells: tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    """A piece of text with one shading; `opens`: the first of its cell; the strip links to it."""

    text: str
    cell: int
    opens: bool
    cited: bool


def render_page(collection: Collection, comparison: Comparison) -> str:
    """Render the page of one question about some documents, with the answers of all modes."""
    records = [compared.answer for compared in comparison.answers]
    longest = max(sum(record.phases.values()) for record in records)
    return (
        environment()
        .get_template("page.html")
        .render(
            question=comparison.question,
            documents=", ".join(document.name for document in collection.documents),
            several=len(collection.documents) > 1,
            memory=max(record.peak_memory_bytes or 0 for record in records) / 2**20,
            views=[answer_view(compared, collection, longest) for compared in comparison.answers],
            misfits=comparison.misfits,
            levels=range(LEVELS + 1),
        )
    )


def answer_view(compared: ModeAnswer, collection: Collection, longest: float) -> dict[str, Any]:
    """Return what the template prints of one answer; `longest`: seconds of the longest one's phases."""
    answer, cells = compared.answer, compared.cells
    origins = [collection.starts[citation.number] for citation in answer.citations]
    marks = [(start + cited.start, start + cited.end) for start, cited in zip(origins, answer.citations, strict=True)]
    cited = [
        [index for index, cell in enumerate(cells) if cell.text_start < end and start < cell.text_end]
        for start, end in marks
    ]
    facts = present(difference_facts(compared) | answer_facts(answer))
    opened: set[int] = set()
    return {
        "answer": answer,
        # Those of phases are indented; the bars show them.
        "facts": [(label, value) for label, value in facts if label not in NOT_ON_A_CARD and label.strip() == label],
        "confidence": confidence_lines(answer),
        "total": seconds(sum(answer.phases.values())),
        "bars": [
            {
                "name": phase_name(name),
                "seconds": seconds(value),
                "percent": 100 * value / longest,
                "colour": BARS.index(name),
            }
            for name, value in answer.phases.items()
            if value > 0
        ],
        "fates": list(dict.fromkeys(cell.fate.value for cell in cells)),
        "scored": any(cell.importance is not None for cell in cells),
        "sources": [(source, indices[0]) for source, indices in zip(answer.citations, cited, strict=True)],
        "cited": {index for indices in cited for index in indices},
        "cells": cells,
        "shades": shades(cells),
        "pages": [
            (page, list(page_pieces(page, cells, collection.text, marks, opened)))
            for page in cells_by_page(collection, cells)
        ],
    }


def shades(cells: Sequence[Cell]) -> list[int]:
    """The shading of each cell by the root of its importance, because few chunks hold most of it; 0 to `LEVELS`."""
    importance = [max(cell.importance or 0.0, 0.0) for cell in cells]
    largest = max(importance, default=0.0) or 1.0
    return [round(LEVELS * sqrt(value / largest)) for value in importance]


def cells_by_page(collection: Collection, cells: Sequence[Cell]) -> list[PageCells]:
    """Return every page in order with the indices of its cells; a cell across two pages belongs to both."""
    pages, position = [], 0
    for document, origin in zip(collection.documents, collection.starts, strict=True):
        for page in document.pages:
            start, end = origin + page.start, origin + page.end
            while position < len(cells) and cells[position].text_end <= start:
                position += 1
            last = position
            while start < end and last < len(cells) and cells[last].text_start < end:
                last += 1
            pages.append(PageCells(document, page.number, start, end, tuple(range(position, last))))
    return pages


def page_pieces(
    page: PageCells, cells: Sequence[Cell], text: str, marks: list[tuple[int, int]], opened: set[int]
) -> Iterator[Piece]:
    """Yield the page's text, cut where cells and citations begin and end; `opened`: cells that began before."""
    for index in page.cells:
        low, high = max(cells[index].text_start, page.start), min(cells[index].text_end, page.end)
        edges = {low, high, *(edge for mark in marks for edge in mark if low < edge < high)}
        for start, end in pairwise(sorted(edges)):
            cited = any(first < end and start < last for first, last in marks)
            yield Piece(text[start:end], index, index not in opened, cited)
            opened.add(index)


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Return the templates' environment; it shows control characters and escapes markup in every value."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=_make_printable,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _make_printable(value: Any) -> Any:
    """Make text printable. Numbers stay, and so does our own markup: its values are printable already."""
    return printable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value

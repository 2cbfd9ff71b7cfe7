"""One self-contained page: the document as each mode treated it, the answers, and where the time went.

The page needs no script and no network, and its content security policy forbids both. Every value passes `printable` and
is escaped.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specprefill_cli.documents.document import Collection
from specprefill_cli.record import PHASES, UPSTREAM, Cell, Comparison, Fate, ModeAnswer
from specprefill_cli.reporting.evidence import confidence_lines
from specprefill_cli.reporting.safe import printable
from specprefill_cli.reporting.table import answer_facts, difference_facts, phase_name, seconds, with_values

if TYPE_CHECKING:
    from jinja2 import Environment

# Labels of figures that are not on a card but in its heading, or once on the page.
NOT_ON_A_CARD = ("mode", "peak memory", *Fate)
# The phases of the bars, each by the number of its colour.
BARS = (*PHASES, UPSTREAM)
# Steps of a cell's shading, from none to full.
LEVELS = 8
TEMPLATES = Path(__file__).resolve().parent / "page"


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
    facts = with_values(difference_facts(compared) | answer_facts(answer))
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
        "pages": list(page_views(collection, cells, marks)),
    }


def shades(cells: Sequence[Cell]) -> list[int]:
    """The shading of each cell by the root of its importance, because few chunks hold most of it; 0 to `LEVELS`."""
    importance = [max(cell.importance or 0.0, 0.0) for cell in cells]
    largest = max(importance, default=0.0) or 1.0
    return [round(LEVELS * sqrt(value / largest)) for value in importance]


def page_views(
    collection: Collection, cells: Sequence[Cell], marks: Sequence[tuple[int, int]]
) -> Iterator[dict[str, Any]]:
    """Every page in order, with the indices of its cells, and its text in pieces; a cell across two pages belongs to both.

    Pieces are cut where cells and citations begin and end. `opens` marks the first of its cell: the strip links to it.
    """
    opened: set[int] = set()
    for document, origin in zip(collection.documents, collection.starts, strict=True):
        for page in document.pages:
            start, end = origin + page.start, origin + page.end
            first = bisect_right(cells, start, key=lambda cell: cell.text_end)
            last = bisect_left(cells, end, key=lambda cell: cell.text_start) if start < end else first
            pieces = []
            for index in range(first, last):
                low, high = max(cells[index].text_start, start), min(cells[index].text_end, end)
                edges = {low, high, *(edge for mark in marks for edge in mark if low < edge < high)}
                for left, right in pairwise(sorted(edges)):
                    cited = any(begin < right and left < stop for begin, stop in marks)
                    opens = index not in opened
                    pieces.append({"text": collection.text[left:right], "cell": index, "opens": opens, "cited": cited})
                    opened.add(index)
            yield {
                "document": document.name,
                "number": page.number,
                "cells": list(range(first, last)),
                "pieces": pieces,
            }


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

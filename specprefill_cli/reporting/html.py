"""A self-contained page without scripts: the document as each mode treated it, the answers, and where the time went."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import sqrt
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from specprefill_cli.documents.document import Collection
from specprefill_cli.record import PHASES, UPSTREAM, Cell, Comparison, Fate, ModeAnswer
from specprefill_cli.reporting.table import answer_facts, difference_facts, phase_name, seconds
from specprefill_cli.reporting.text import confidence_lines, printable

# Labels of figures that stand in a card's heading, or once on the page, instead of on the card.
NOT_ON_A_CARD = ("mode", "peak memory", *Fate)
# The phases of the bars; a phase's index is the number of its colour.
BARS = (*PHASES, UPSTREAM)
# Steps of a cell's shading, from none to full.
LEVELS = 8


def render_page(collection: Collection, comparison: Comparison) -> str:
    """Render the page of a question about some documents, with the answers of all modes."""
    records = [mode_answer.answer for mode_answer in comparison.answers]
    longest = max(sum(record.phases.values()) for record in records)
    # Control characters become visible, and markup is escaped; our own markup holds printable values already.
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).resolve().parent / "page"),
        autoescape=True,
        finalize=lambda value: printable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        question=comparison.question,
        documents=", ".join(document.name for document in collection.documents),
        several=len(collection.documents) > 1,
        memory=max(record.peak_memory_bytes or 0 for record in records) / 2**20,
        views=[answer_view(mode_answer, collection, longest) for mode_answer in comparison.answers],
        misfits=comparison.misfits,
        levels=range(LEVELS + 1),
    )


def answer_view(mode_answer: ModeAnswer, collection: Collection, longest: float) -> dict[str, Any]:
    """Return what the template prints of an answer; `longest`: total seconds of the slowest answer's phases."""
    answer, cells = mode_answer.answer, mode_answer.cells
    cited_ranges = []
    for citation in answer.citations:
        number = collection.part_number(citation)
        origin = collection.starts[number] - collection.documents[number].origin
        cited_ranges.append((origin + citation.start, origin + citation.end))
    cited_cells = [
        [index for index, cell in enumerate(cells) if cell.text_start < end and start < cell.text_end]
        for start, end in cited_ranges
    ]
    phases = [phase for phase in answer.phases.items() if phase[1] > 0]
    # By the root of its importance a cell is shaded, because few chunks hold most of the importance.
    importance = [max(cell.importance or 0.0, 0.0) for cell in cells]
    highest = max(importance, default=0.0) or 1.0
    facts = [fact for fact in (difference_facts(mode_answer) | answer_facts(answer)).items() if fact[1]]
    return {
        "answer": answer,
        # Leave out the indented labels: they are phases, and the bars show them.
        "facts": [(label, value) for label, value in facts if label not in NOT_ON_A_CARD and label.strip() == label],
        "confidence": confidence_lines(answer),
        "total": seconds(sum(answer.phases.values())),
        "bars": [(BARS.index(name), phase_name(name), seconds(value), 100 * value / longest) for name, value in phases],
        "fates": list(dict.fromkeys(cell.fate.value for cell in cells)),
        "scored": any(cell.importance is not None for cell in cells),
        "sources": [(source, indices[0]) for source, indices in zip(answer.citations, cited_cells, strict=True)],
        "cited": {index for indices in cited_cells for index in indices},
        "cells": cells,
        "shades": [round(LEVELS * sqrt(value / highest)) for value in importance],
        "pages": list(page_views(collection, cells, cited_ranges)),
    }


def page_views(
    collection: Collection, cells: Sequence[Cell], cited_ranges: Sequence[tuple[int, int]]
) -> Iterator[dict[str, Any]]:
    """Yield every page with the indices of its cells and its text in pieces; a cell across two pages is on each of them.

    Pieces are cut where cells and citations begin and end. `opens` marks the first piece of a cell: the strip links to it.
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
                edges = {edge for cited_range in cited_ranges for edge in cited_range if low < edge < high}
                for left, right in pairwise(sorted({low, high, *edges})):
                    cited = any(begin < right and left < stop for begin, stop in cited_ranges)
                    opens = index not in opened
                    pieces.append({"text": collection.text[left:right], "cell": index, "opens": opens, "cited": cited})
                    opened.add(index)
            yield {"document": document.name, "number": page.number, "cells": range(first, last), "pieces": pieces}

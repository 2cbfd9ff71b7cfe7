"""One self-contained page: the document as each mode treated it, the answers, and where the time went.

The page needs no script and no network, and its content security policy forbids both. Every value passes `printable` and
is escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specprefill_cli.prefill.phases import PHASES, UPSTREAM
from specprefill_cli.record import LEVELS, Cell
from specprefill_cli.reporting.evidence import confidence_lines
from specprefill_cli.reporting.safe import printable
from specprefill_cli.reporting.strip import PageCells, cells_by_page
from specprefill_cli.reporting.table import answer_facts, phase_name, present, seconds

if TYPE_CHECKING:
    from jinja2 import Environment

    from specprefill_cli.documents.document import Collection
    from specprefill_cli.record import Citation, Passage, Record

# Labels of the figures on a card; others are in its heading, in its bars, or once on the page.
PAGE_FACTS = (
    *("pair", "prompt", "kept", "positions", "scorer", "TTFT", "reused", "start-up", "decode", "full prefill"),
    *("provisional answer", "acceptance", "speculation"),
)
# The phases of the bars, each by the number of its colour.
BARS = (*PHASES, UPSTREAM)
TEMPLATES = Path(__file__).resolve().parent / "page"


@dataclass(frozen=True, kw_only=True)
class PageResult:
    """One mode on the page.

    answer: its text, or None where the target did not run; facts: labels and values
    phases: seconds by the names in `BARS`
    passages: those under the answer, with one line on its confidence
    cells: the document as this mode treated it; estimates: header and rows of a table, or nothing
    peak_memory_bytes: of the whole process, so that the page shows it once
    """

    mode: str
    reason: str | None
    answer: str | None
    facts: Sequence[tuple[str, str]]
    phases: dict[str, float]
    citations: Sequence[Citation]
    warnings: Sequence[str]
    cells: Sequence[Cell]
    estimates: Sequence[Sequence[str]] = ()
    peak_memory_bytes: int | None = None
    passages: Sequence[Passage] = ()
    confidence: Sequence[str] = ()


@dataclass(frozen=True)
class Piece:
    """A piece of text with one shading; `opens`: it is the first of its cell, to which the strip links."""

    text: str
    cell: int
    opens: bool
    cited: bool


@dataclass(frozen=True)
class Bar:
    """A phase in the bars: its part of the longest time in percent, and the number of its colour."""

    name: str
    seconds: str
    percent: float
    colour: int


def answer_result(answer: Record, cells: Sequence[Cell]) -> PageResult:
    """Return an answer as the page shows it."""
    return PageResult(
        mode=answer.mode,
        reason=answer.reason,
        answer=answer.answer,
        facts=[(label, value) for label, value in present(answer_facts(answer)) if label in PAGE_FACTS],
        peak_memory_bytes=answer.peak_memory_bytes,
        phases=answer.phases,
        citations=answer.citations,
        warnings=answer.warnings,
        cells=cells,
        passages=answer.passages,
        confidence=confidence_lines(answer)[:1],
    )


def render_page(question: str, collection: Collection, results: Sequence[PageResult]) -> str:
    """Render the page of one question about some documents, with all results."""
    longest = max((sum(result.phases.values()) for result in results), default=0.0)
    template = environment().get_template("page.html")
    return template.render(
        question=question,
        documents=", ".join(document.name for document in collection.documents),
        several=len(collection.documents) > 1,
        timed=longest > 0,
        answered=any(result.answer is not None for result in results),
        memory=max((result.peak_memory_bytes or 0 for result in results), default=0) / 2**20,
        results=[result_view(result, collection, longest) for result in results],
        levels=range(LEVELS + 1),
    )


def result_view(result: PageResult, collection: Collection, longest: float) -> dict[str, Any]:
    """Return what the template prints of one result; `longest`: seconds of the longest one's phases."""
    marks = cited_ranges(result.citations, collection)
    cited = [
        [index for index, cell in enumerate(result.cells) if cell.start < end and start < cell.end]
        for start, end in marks
    ]
    opened: set[int] = set()
    return {
        "result": result,
        "total": seconds(sum(result.phases.values())),
        "bars": [
            Bar(phase_name(name), seconds(value), 100 * value / longest, BARS.index(name))
            for name, value in result.phases.items()
            if value > 0
        ],
        "fates": list(dict.fromkeys(cell.fate.value for cell in result.cells)),
        "scored": any(cell.place is not None for cell in result.cells),
        "sources": [(source, cells[0]) for source, cells in zip(result.citations, cited, strict=True)],
        "cited": {index for cells in cited for index in cells},
        "chunks": len(result.cells),
        "pages": [
            (page, list(page_pieces(page, result.cells, collection.text, marks, opened)))
            for page in cells_by_page(collection, result.cells)
        ],
    }


def cited_ranges(citations: Sequence[Citation], collection: Collection) -> list[tuple[int, int]]:
    """Return the character ranges [start, end) of the collection's text in which answers stand."""
    origins = [collection.starts[citation.number] for citation in citations]
    return [(start + cited.start, start + cited.end) for start, cited in zip(origins, citations, strict=True)]


def page_pieces(
    page: PageCells, cells: Sequence[Cell], text: str, marks: list[tuple[int, int]], opened: set[int]
) -> Iterator[Piece]:
    """Yield the page's text, cut where cells and citations begin and end; `opened`: cells that began before."""
    for index in page.cells:
        low, high = max(cells[index].start, page.start), min(cells[index].end, page.end)
        edges = {low, high, *(edge for mark in marks for edge in mark if low < edge < high)}
        for start, end in pairwise(sorted(edges)):
            cited = any(first < end and start < last for first, last in marks)
            yield Piece(text[start:end], index, index not in opened, cited)
            opened.add(index)


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Return the templates' environment, which shows control characters and escapes markup in every value."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _shown(value: Any) -> Any:
    """Make text printable; our own markup, whose values were made printable before, and numbers stay."""
    return printable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value

"""One self-contained page: what was kept of the document in each mode, the answers, and where the time went.

The page needs no script and no network, and its policy forbids both. Every value passes `printable` and is escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specprefill_cli.answering.cells import LEVELS, Cell, PageCells, cells_by_page
from specprefill_cli.prefill.phases import PHASES
from specprefill_cli.reporting.safe import printable
from specprefill_cli.reporting.table import PHASE_WORDS, decode_facts, prompt_facts, seconds

if TYPE_CHECKING:
    from jinja2 import Environment

    from specprefill_cli.answering.answer import Answer
    from specprefill_cli.answering.citations import Citation
    from specprefill_cli.documents.collection import Collection

TEMPLATES = Path(__file__).resolve().parent / "page"


@dataclass(frozen=True)
class PageResult:
    """One mode on the page.

    answer: its text, or None where the target did not run; facts: labels and values
    phases: seconds by the names in `timing.PHASES`
    cells: the document as this mode treated it; estimates: header and rows of a table, or nothing
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


@dataclass(frozen=True)
class Piece:
    """A piece of text with one shading; `opens`: it is the first of its cell, to which the strip links."""

    text: str
    cell: int
    opens: bool
    cited: bool


@dataclass(frozen=True)
class Bar:
    """A phase in the bars: its share of the longest time, in percent, and its colour's number."""

    name: str
    seconds: str
    percent: float
    colour: int


def answer_result(answer: Answer, cells: Sequence[Cell]) -> PageResult:
    """An answer as the page shows it."""
    facts = [
        *prompt_facts(answer),
        ("TTFT", seconds(answer.ttft_seconds)),
        ("start-up", seconds(answer.startup_seconds)),
        *([("reused", ", ".join(answer.reused))] if answer.reused else []),
        *decode_facts(answer),
    ]
    return PageResult(
        answer.mode, answer.reason, answer.answer, facts, answer.phases, answer.citations, answer.warnings, cells
    )


def render_page(question: str, collection: Collection, results: Sequence[PageResult]) -> str:
    """The page of one question about some documents, as each of the results answered it."""
    longest = max((sum(result.phases.values()) for result in results), default=0.0)
    return environment().get_template("page.html").render(
        question=question,
        documents=", ".join(document.name for document in collection.documents),
        several=len(collection.documents) > 1,
        timed=longest > 0,
        answered=any(result.answer is not None for result in results),
        results=[view(result, collection, longest) for result in results],
        levels=range(LEVELS + 1),
    )  # fmt: skip


def view(result: PageResult, collection: Collection, longest: float) -> dict[str, Any]:
    """What the template prints of one result."""
    marks = cited_ranges(result.citations, collection)
    cited = [
        [index for index, cell in enumerate(result.cells) if cell.start < end and start < cell.end]
        for start, end in marks
    ]
    pages = cells_by_page(collection, list(result.cells))
    opened: set[int] = set()
    return {
        "result": result,
        "total": seconds(sum(result.phases.values())),
        "bars": [
            Bar(PHASE_WORDS.get(name, name), seconds(value), 100 * value / longest, PHASES.index(name))
            for name, value in result.phases.items()
            if value > 0
        ],
        "fates": list(dict.fromkeys(cell.fate.value for cell in result.cells)),
        "scored": any(cell.place is not None for cell in result.cells),
        "sources": [(source, cells[0]) for source, cells in zip(result.citations, cited, strict=True)],
        "cited": {index for cells in cited for index in cells},
        "chunks": len(result.cells),
        "pages": [(page, list(pieces(page, result.cells, collection.text, marks, opened))) for page in pages],
    }


def cited_ranges(citations: Sequence[Citation], collection: Collection) -> list[tuple[int, int]]:
    """Character ranges [start, end) of the collection's text in which answers stand."""
    starts = collection.starts
    return [(starts[one.number] + one.start, starts[one.number] + one.end) for one in citations]


def pieces(
    page: PageCells, cells: Sequence[Cell], text: str, marks: list[tuple[int, int]], opened: set[int]
) -> Iterator[Piece]:
    """The page's text, cut where cells and citations begin and end."""
    for index in page.cells:
        low, high = max(cells[index].start, page.start), min(cells[index].end, page.end)
        edges = {low, high, *(edge for mark in marks for edge in mark if low < edge < high)}
        for start, end in pairwise(sorted(edges)):
            cited = any(first < end and start < last for first, last in marks)
            yield Piece(text[start:end], index, index not in opened, cited)
            opened.add(index)


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Templates in which every value is made harmless: control characters are shown, markup is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def shown(value: Any) -> Any:
    """A text made printable; markup of our own making (which was, where it was made) and numbers as they are."""
    return printable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value

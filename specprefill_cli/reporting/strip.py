"""The heat strip: one character for each chunk of a page, by importance and fate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from specprefill_cli.documents.document import Collection, Document
from specprefill_cli.errors import one_line
from specprefill_cli.record import Cell, Fate
from specprefill_cli.reporting.safe import plain

# Rising density, one character for each level.
DENSITY = " .:-=+*#@"
# Shown below the cell.
FATE_MARKS = {Fate.RECOMPUTE: "o", Fate.ACCEPT: "a", Fate.DROP: " "}
# Columns that the bars at both ends take.
BORDER = 2


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


def heat_strip(collection: Collection, cells: Sequence[Cell]) -> Table:
    """Build a table with a row for each page with text; among several documents, pages are named with theirs."""
    several = len(collection.documents) > 1
    table = Table(show_header=False, box=None, padding=(0, 1, 0, 0))
    table.add_column(style="dim", no_wrap=not several)
    table.add_column()
    for page in cells_by_page(collection, cells):
        if page.cells:
            name = f"{one_line(page.document.name)}, p. {page.number}" if several else f"p. {page.number}"
            table.add_row(plain(name), PageStrip([cells[index] for index in page.cells]))
    return table


@dataclass(frozen=True)
class PageStrip:
    """The cells of a page in lines as wide as the column: rich would wrap at words and drop blanks."""

    cells: Sequence[Cell]

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        widest = min(len(self.cells) + BORDER, options.max_width)
        return Measurement(min(widest, 1 + BORDER), widest)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        width = max(1, options.max_width - BORDER)
        for start in range(0, len(self.cells), width):
            row = self.cells[start : start + width]
            heat = "".join(DENSITY[cell.level] for cell in row)
            fates = "".join(FATE_MARKS[cell.fate] for cell in row).rstrip()
            yield Text(f"|{heat}|\n {fates}" if fates else f"|{heat}|", no_wrap=True)


def legend(chunk_size: int) -> str:
    """Explain the strip in one line."""
    shading = f"the denser the character ({DENSITY.strip()})"
    return f"one cell is a chunk of {chunk_size} tokens: {shading}, the more important; o below it: kept"

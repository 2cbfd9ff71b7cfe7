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
from specprefill_cli.record import LEVELS, Cell, Fate
from specprefill_cli.reporting.safe import plain

# Rising density, one character for each level, for terminals without colour.
DENSITY = " .:-=+*#@"
# Backgrounds from night blue to yellow, whose brightness rises too.
HEAT = ("#20242c", "#2b2f55", "#46327e", "#6d3a86", "#97437f", "#c0506a", "#e26a4c", "#f6913a", "#fcd34d")
# Shown in the cell, or without colour below it.
FATE_MARKS = {Fate.RECOMPUTE: "o", Fate.ACCEPT: "a", Fate.DROP: " "}


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


def heat_strip(collection: Collection, cells: Sequence[Cell], colour: bool) -> Table:
    """Build a table with a row for each page with text; among several documents, pages are named with theirs."""
    several = len(collection.documents) > 1
    table = Table(show_header=False, box=None, padding=(0, 1, 0, 0))
    table.add_column(style="dim", no_wrap=not several)
    table.add_column()
    for page in cells_by_page(collection, cells):
        if page.cells:
            name = f"{one_line(page.document.name)}, p. {page.number}" if several else f"p. {page.number}"
            table.add_row(plain(name), PageStrip([cells[index] for index in page.cells], colour))
    return table


@dataclass(frozen=True)
class PageStrip:
    """The cells of a page in lines as wide as the column: rich would wrap at words and drop blanks."""

    cells: Sequence[Cell]
    colour: bool

    @property
    def border(self) -> int:
        """Columns that the bars at both ends take."""
        return 0 if self.colour else 2

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        widest = min(len(self.cells) + self.border, options.max_width)
        return Measurement(min(widest, 1 + self.border), widest)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        width = max(1, options.max_width - self.border)
        for start in range(0, len(self.cells), width):
            row = self.cells[start : start + width]
            yield _coloured(row) if self.colour else _characters(row)


def _coloured(cells: Sequence[Cell]) -> Text:
    text = Text(no_wrap=True)
    for cell in cells:
        bright = cell.level > LEVELS // 2
        text.append(FATE_MARKS[cell.fate], style=f"{'black' if bright else 'white'} on {HEAT[cell.level]}")
    return text


def _characters(cells: Sequence[Cell]) -> Text:
    """Importance as density, and fates on a second line."""
    heat = "".join(DENSITY[cell.level] for cell in cells)
    fates = "".join(FATE_MARKS[cell.fate] for cell in cells).rstrip()
    return Text(f"|{heat}|\n {fates}" if fates else f"|{heat}|", no_wrap=True)


def legend(chunk_size: int, colour: bool) -> str:
    """Explain the strip in one line."""
    shading = "the brighter the background" if colour else f"the denser the character ({DENSITY.strip()})"
    place = "in" if colour else "below"
    return f"one cell is a chunk of {chunk_size} tokens: {shading}, the more important; o {place} it: kept"

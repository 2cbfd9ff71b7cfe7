"""The heat strip: one character for each chunk of a page, by importance and fate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from specprefill_cli.answering.cells import LEVELS, Cell, cells_by_page
from specprefill_cli.documents.collection import Collection
from specprefill_cli.prefill.fates import Fate
from specprefill_cli.reporting.safe import plain

# Rising density, one for each level, for terminals without colour.
DENSITY = " .:-=+*#@"
# Backgrounds from night blue to yellow: told apart by brightness alone too.
HEAT = ("#20242c", "#2b2f55", "#46327e", "#6d3a86", "#97437f", "#c0506a", "#e26a4c", "#f6913a", "#fcd34d")
# What stands in the cell, or without colour below it.
FATE_MARKS = {Fate.RECOMPUTE: "o", Fate.ACCEPT: "a", Fate.DROP: " "}


def heat_strip(collection: Collection, cells: Sequence[Cell], colour: bool) -> Table:
    """A row for each page with text, named by its number and, among several documents, by document."""
    several = len(collection.documents) > 1
    table = Table(show_header=False, box=None, padding=(0, 1, 0, 0))
    table.add_column(style="dim", no_wrap=not several)
    table.add_column()
    for page in cells_by_page(collection, list(cells)):
        if page.cells:
            name = f"{page.document.name}, p. {page.number}" if several else f"p. {page.number}"
            own = [cells[index] for index in page.cells]
            table.add_row(plain(name), PageStrip(own, colour))
    return table


@dataclass(frozen=True)
class PageStrip:
    """The cells of a page in lines as wide as the room: cut here, because words would be wrapped and blanks dropped."""

    cells: Sequence[Cell]
    colour: bool

    @property
    def edges(self) -> int:
        return 0 if self.colour else 2

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        widest = min(len(self.cells) + self.edges, options.max_width)
        return Measurement(min(widest, 1 + self.edges), widest)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        width = max(1, options.max_width - self.edges)
        for start in range(0, len(self.cells), width):
            line = self.cells[start : start + width]
            yield coloured(line) if self.colour else characters(line)


def coloured(cells: Sequence[Cell]) -> Text:
    text = Text(no_wrap=True)
    for cell in cells:
        dark = cell.level > LEVELS // 2
        text.append(FATE_MARKS[cell.fate], style=f"{'black' if dark else 'white'} on {HEAT[cell.level]}")
    return text


def characters(cells: Sequence[Cell]) -> Text:
    """Two lines: importance as density, and fates below it."""
    heat = "".join(DENSITY[cell.level] for cell in cells)
    fates = "".join(FATE_MARKS[cell.fate] for cell in cells).rstrip()
    return Text(f"|{heat}|\n {fates}" if fates else f"|{heat}|", no_wrap=True)


def legend(chunk_size: int, colour: bool) -> str:
    shown = "the brighter the background" if colour else f"the denser the character ({DENSITY.strip()})"
    place = "in" if colour else "below"
    return f"one cell is a chunk of {chunk_size} tokens: {shown}, the more important; o {place} it: kept"

"""The heat strip: one character for each chunk of a page, by importance and fate."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from specprefill_cli.documents.collection import Collection
from specprefill_cli.prefill.plan import Fate
from specprefill_cli.reporting.cells import LEVELS, Cell, cells_by_page
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
    table.add_column(overflow="fold")
    for page in cells_by_page(collection, list(cells)):
        if page.cells:
            name = f"{page.document.name}, p. {page.number}" if several else f"p. {page.number}"
            own = [cells[index] for index in page.cells]
            table.add_row(plain(name), coloured(own) if colour else characters(own))
    return table


def coloured(cells: Sequence[Cell]) -> Text:
    text = Text()
    for cell in cells:
        dark = cell.level > LEVELS // 2
        text.append(FATE_MARKS[cell.fate], style=f"{'black' if dark else 'white'} on {HEAT[cell.level]}")
    return text


def characters(cells: Sequence[Cell]) -> Text:
    """Two lines: importance as density, and fates below it."""
    heat = "".join(DENSITY[cell.level] for cell in cells)
    fates = "".join(FATE_MARKS[cell.fate] for cell in cells).rstrip()
    return Text(f"|{heat}|\n {fates}" if fates else f"|{heat}|")


def legend(chunk_size: int, colour: bool) -> str:
    shown = "the brighter the background" if colour else f"the denser the character ({DENSITY.strip()})"
    place = "in" if colour else "below"
    return f"one cell is a chunk of {chunk_size} tokens: {shown}, the more important; o {place} it: kept"

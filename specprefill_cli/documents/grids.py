"""Tables of a PDF page that are drawn with lines: their rows, whatever the order in which the texts of the cells are drawn."""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from specprefill_cli.documents.pieces import Piece
from specprefill_cli.documents.tables import table_lines

if TYPE_CHECKING:
    from pypdfium2 import PdfPage

Point = tuple[float, float]
# In points: the shortest line, and how far two lines at one place may be apart.
SHORTEST, SAME_PLACE = 8.0, 3.0
LONGEST_CELL = 500
# A page with more drawings is a picture, not a table.
MOST_DRAWINGS, MOST_STROKES = 3000, 20_000


@dataclass(frozen=True)
class Grid:
    """A table's lines: places of the vertical ones from the left, and of the horizontal ones from below, in points."""

    columns: Sequence[float]
    rows: Sequence[float]

    def parts(self, left: float, right: float, base: float) -> bool:
        """Whether a line of the table parts two texts on a baseline."""
        return self.rows[0] < base < self.rows[-1] and bisect_right(self.columns, left) < bisect_right(
            self.columns, right
        )

    def holds(self, piece: Piece) -> bool:
        return self.rows[0] < piece.base < self.rows[-1] and self.columns[0] < piece.left + 1 < self.columns[-1]

    def lines(self, pieces: Sequence[Piece]) -> Iterator[str]:
        """Yield the rows of the table from its pieces; the pieces themselves where the lines only frame whole paragraphs."""
        cells = [[""] * (len(self.columns) - 1) for _ in self.rows[1:]]
        for piece in pieces:
            row, column = bisect_right(self.rows, piece.base), bisect_right(self.columns, piece.left + 1) - 1
            cells[-row][column] = f"{cells[-row][column]} {piece.text}".strip()
        if max(len(cell) for row in cells for cell in row) > LONGEST_CELL:
            yield from (piece.text for piece in pieces)
        else:
            yield from table_lines(row for row in cells if any(row))


def grids_of(page: PdfPage) -> list[Grid]:
    """The tables of a page that are drawn with lines and have at least two columns and two rows."""
    upright, level = [], []
    for (x, y), (other_x, other_y) in islice(strokes(page), MOST_STROKES):
        if abs(x - other_x) < 1 and abs(y - other_y) >= SHORTEST:
            upright.append((max(y, other_y), min(y, other_y), x))
        elif abs(y - other_y) < 1 and abs(x - other_x) >= SHORTEST:
            level.append((y, min(x, other_x), max(x, other_x)))
    groups: list[list[tuple[float, float, float]]] = []
    lowest = float("inf")
    for line in sorted(upright, reverse=True):
        if line[0] < lowest - SAME_PLACE or not groups:
            groups.append([])
            lowest = line[1]
        groups[-1].append(line)
        lowest = min(lowest, line[1])
    grids = []
    for group in groups:
        top, bottom = group[0][0], min(bottom for _, bottom, _ in group)
        columns = places(x for _, _, x in group)
        rows = places(
            y
            for y, left, right in level
            if bottom - SAME_PLACE <= y <= top + SAME_PLACE and left < columns[-1] and right > columns[0]
        )
        if len(columns) > 2 and len(rows) > 2:
            grids.append(Grid(columns, rows))
    return grids


def places(values: Iterator[float]) -> list[float]:
    """Ascending places without those beside another."""
    kept: list[float] = []
    for value in sorted(values):
        if not kept or value - kept[-1] > SAME_PLACE:
            kept.append(value)
    return kept


def strokes(page: PdfPage) -> Iterator[tuple[Point, Point]]:
    """Yield the ends of each straight line that a page draws."""
    import pypdfium2.raw as pdfium

    x, y, matrix = ctypes.c_float(), ctypes.c_float(), pdfium.FS_MATRIX()
    count = pdfium.FPDFPage_CountObjects(page.raw)
    for index in range(count if count <= MOST_DRAWINGS else 0):
        drawing = pdfium.FPDFPage_GetObject(page.raw, index)
        if pdfium.FPDFPageObj_GetType(drawing) != pdfium.FPDF_PAGEOBJ_PATH:
            continue
        pdfium.FPDFPageObj_GetMatrix(drawing, ctypes.byref(matrix))
        start = before = (0.0, 0.0)
        for number in range(min(pdfium.FPDFPath_CountSegments(drawing), MOST_DRAWINGS)):
            segment = pdfium.FPDFPath_GetPathSegment(drawing, number)
            pdfium.FPDFPathSegment_GetPoint(segment, ctypes.byref(x), ctypes.byref(y))
            point = (
                matrix.a * x.value + matrix.c * y.value + matrix.e,
                matrix.b * x.value + matrix.d * y.value + matrix.f,
            )
            if pdfium.FPDFPathSegment_GetType(segment) == pdfium.FPDF_SEGMENT_MOVETO:
                start = point
            else:
                yield before, point
            if pdfium.FPDFPathSegment_GetClose(segment):
                yield point, start
            before = point

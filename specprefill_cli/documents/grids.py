"""Tables of a PDF page that are drawn with lines: where the lines stand."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from itertools import islice

import pypdfium2.raw as pdfium
from pypdfium2 import PdfPage

from specprefill_cli.documents.layout import Grid

Point = tuple[float, float]
# In points: the shortest line, and how far two lines at one place may be apart.
SHORTEST, SAME_PLACE = 8.0, 3.0
# A page with more drawings is a picture, not a table.
MOST_DRAWINGS, MOST_STROKES = 3000, 20_000


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
        columns = places(x for _, _, x in group)
        low, high = min(bottom for _, bottom, _ in group) - SAME_PLACE, group[0][0] + SAME_PLACE
        rows = places(y for y, left, right in level if low <= y <= high and left < columns[-1] and right > columns[0])
        if len(columns) > 2 and len(rows) > 2:
            grids.append(Grid(columns, rows))
    return grids


def places(values: Iterable[float]) -> list[float]:
    """Ascending places without those beside another."""
    kept: list[float] = []
    for value in sorted(values):
        if not kept or value - kept[-1] > SAME_PLACE:
            kept.append(value)
    return kept


def strokes(page: PdfPage) -> Iterator[tuple[Point, Point]]:
    """Yield the ends of each straight line that a page draws."""
    if pdfium.FPDFPage_CountObjects(page.raw) > MOST_DRAWINGS:
        return
    x, y = ctypes.c_float(), ctypes.c_float()
    for drawing in page.get_objects(filter=(pdfium.FPDF_PAGEOBJ_PATH,), max_depth=1):
        matrix = drawing.get_matrix()
        start = before = (0.0, 0.0)
        for number in range(min(pdfium.FPDFPath_CountSegments(drawing.raw), MOST_DRAWINGS)):
            segment = pdfium.FPDFPath_GetPathSegment(drawing.raw, number)
            pdfium.FPDFPathSegment_GetPoint(segment, ctypes.byref(x), ctypes.byref(y))
            point = matrix.on_point(x.value, y.value)
            if pdfium.FPDFPathSegment_GetType(segment) == pdfium.FPDF_SEGMENT_MOVETO:
                start = point
            else:
                yield before, point
            if pdfium.FPDFPathSegment_GetClose(segment):
                yield point, start
            before = point

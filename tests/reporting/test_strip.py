"""The heat strip in a terminal."""

from io import StringIO
from itertools import pairwise

import numpy as np
import torch
from rich.console import Console

from specprefill_cli.answering.cells import document_cells
from specprefill_cli.documents.document import Collection, Document, Page, one_page_document
from specprefill_cli.prefill.fates import Plan, Span
from specprefill_cli.record import Fate
from specprefill_cli.reporting.strip import DENSITY, heat_strip

HOSTILE = "\x1b[2J[bold]\u202e.pdf"


def drawn(*arguments):
    out = StringIO()
    Console(file=out, width=80).print(heat_strip(*arguments))
    return out.getvalue()


def shown(*others):
    pages = (Page(1, 0, 16), Page(2, 16, 16), Page(3, 16, 32))
    collection = Collection((Document("a", "x" * 32, pages, "text/plain"), *others))
    count = len(collection.text)
    plan = Plan(count, (0, count), (Span(0, 24, Fate.DROP), Span(24, count, Fate.RECOMPUTE)))
    importance = torch.arange(count).float().clamp(max=32)
    return drawn(
        collection, document_cells(collection, np.array([(n, n + 1) for n in range(count)]), plan, importance, 8)
    )


def test_density_shows_importance_and_marks_stand_below():
    lines = [line.rstrip() for line in shown().splitlines()]
    assert lines[0].startswith("p. 1 |")
    assert lines[1].startswith("p. 3 |")
    cells = lines[0][6:8] + lines[1][6:8]
    assert [DENSITY.index(mark) for mark in cells] == sorted(DENSITY.index(mark) for mark in cells)
    assert cells[-1] == DENSITY[-1]
    assert lines[2] == " " * 7 + "o"
    assert "\x1b" not in "".join(lines)


def test_a_page_with_more_cells_than_columns_shows_them_all():
    count, kept = 400, (10, 80, 200)
    collection = Collection((one_page_document("a", "x" * count, "text/plain"),))
    bounds = sorted({0, count, *(edge for place in kept for edge in (place, place + 1))})
    spans = [Span(a, b, Fate.RECOMPUTE if a in kept else Fate.DROP) for a, b in pairwise(bounds)]
    offsets = np.array([(n, n + 1) for n in range(count)])
    cells = document_cells(collection, offsets, Plan(count, (0, count), tuple(spans)), torch.zeros(count), 1)
    lines = drawn(collection, cells).splitlines()
    assert sum(line.count(DENSITY[0]) for line in lines if "|" in line) >= count
    # Every mark stands below its own cell: 73 of them in a line after the page's name and the edge.
    rows = [number for number, line in enumerate(lines) if "|" in line]
    marks = [
        (place, lines[row + 1].index("o") - 6)
        for place, row in enumerate(rows)
        if row + 1 < len(lines) and "o" in lines[row + 1]
    ]
    width = lines[rows[0]].rindex("|") - 6
    assert tuple(line * width + column for line, column in marks) == kept


def test_hostile_document_names_are_shown_as_text():
    text = shown(one_page_document(HOSTILE, "y" * 16, "text/plain"))
    assert "\\x1b[2J[bold]\\u202e.pdf, p. 1" in text
    assert "\x1b" not in text

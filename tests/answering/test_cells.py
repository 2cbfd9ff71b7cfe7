"""Cells split a document's text by chunk and fate."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from specprefill_cli.answering.places import document_cells
from specprefill_cli.documents.document import Collection, Document, Page, one_page_document
from specprefill_cli.prefill.fates import Plan, Span, full_plan
from specprefill_cli.record import Fate
from specprefill_cli.reporting.html import page_views
from tests.helpers.samples import collection_of

TEXT = "abcdefghij" * 2
OFFSETS = np.array([(place, place + 1) for place in range(20)])
COLLECTION = collection_of(TEXT)


def plan(*spans):
    return Plan(30, (5, 25), tuple(Span(5 + low, 5 + high, fate) for low, high, fate in spans))


def test_cells_carry_fate_and_mean_importance():
    importance = torch.tensor([0.0] * 8 + [4.0] * 4 + [2.0] * 4 + [1.0] * 4)
    cells = document_cells(COLLECTION, OFFSETS, plan((0, 8, Fate.DROP), (8, 20, Fate.RECOMPUTE)), importance, 8)
    assert [(cell.text_start, cell.text_end, cell.end - cell.start, cell.fate, cell.importance) for cell in cells] == [
        (0, 8, 8, Fate.DROP, 0.0),
        (8, 16, 8, Fate.RECOMPUTE, 3.0),
        (16, 20, 4, Fate.RECOMPUTE, 1.0),
    ]


def test_chunks_split_by_fate_and_unscored_cells_have_no_importance():
    cells = document_cells(COLLECTION, OFFSETS, plan((0, 3, Fate.RECOMPUTE), (3, 20, Fate.ACCEPT)), None, 16)
    assert [(cell.text_start, cell.text_end, cell.fate) for cell in cells] == [
        (0, 3, Fate.RECOMPUTE),
        (3, 16, Fate.ACCEPT),
        (16, 20, Fate.ACCEPT),
    ]
    assert {cell.importance for cell in cells} == {None}


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 9))
def test_cells_cover_the_text_without_gaps(widths, chunk):
    """Tokens may overlap (bytes of a character), be empty or skip characters."""
    ends = np.cumsum(widths)
    offsets = np.stack([np.maximum(ends - widths - 1, 0), ends], 1)
    collection = collection_of("x" * (int(ends[-1]) + 2))
    cells = document_cells(collection, offsets, full_plan(len(widths), (0, len(widths))), None, chunk)
    assert [cell.text_start for cell in cells] == [0, *(cell.text_end for cell in cells[:-1])]
    assert cells[-1].text_end == len(collection.text)
    assert sum(cell.end - cell.start for cell in cells) == len(widths)


def test_pages_list_their_cells_across_documents():
    first = Document("a", "12345678", (Page(1, 0, 3), Page(2, 3, 3), Page(3, 5, 8)))
    collection = Collection((first, one_page_document("b", "abcdefgh")))
    offsets = np.array([(place, place + 1) for place in range(18)])
    cells = document_cells(collection, offsets, full_plan(18, (0, 18)), None, 6)
    pages = list(page_views(collection, cells, []))
    assert [(page["document"], page["number"], page["cells"]) for page in pages] == [
        ("a", 1, [0]),
        ("a", 2, []),
        ("a", 3, [0, 1]),
        ("b", 1, [1, 2]),
    ]
    texts = ["".join(piece["text"] for piece in page["pieces"]) for page in pages]
    assert texts == ["123", "", "678", "abcdefgh"]

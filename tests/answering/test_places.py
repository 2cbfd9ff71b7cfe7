"""Citations: complete words in the text that the target read, with page and sentence; cells: the text by chunk and fate."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specprefill_cli.answering.places import cite, document_cells, touched_pages
from specprefill_cli.documents.document import Collection, Document, Page, one_page_document
from specprefill_cli.prefill.fates import Plan, Span, full_plan
from specprefill_cli.record import Fate
from specprefill_cli.reporting.html import page_views
from tests.helpers.samples import collection_of

TEXT = "The gate is green. It opens at nine.\n\nThe fee is four  euros. The green door opens at ten."
DOCUMENT = Document("guide.pdf", TEXT, (Page(1, 0, 36), Page(2, 38, len(TEXT))))
COLLECTION = Collection((DOCUMENT,))
FULL = full_plan(len(TEXT) + 5, (5, 5 + len(TEXT)))
NUMBERS = "It cost 12,000 euros, 3.12 of them in cash, and took 12 days. There were 12."
LONG = " ".join(f"Donaudampfschifffahrt{number}" for number in range(20)) + " ends here."
NOTHING = "There is no parking. Details can be found in the appendix."
LETTERS = "abcdefghij" * 2


def one_token_a_character(text):
    return np.array([(place, place + 1) for place in range(len(text))])


def test_matching_ignores_whitespace_and_case_and_else_takes_the_longest_quote():
    (citation,) = cite("Four euros.", COLLECTION, FULL, one_token_a_character(TEXT), None)
    assert (citation.document, citation.page, citation.text) == ("guide.pdf", 2, "The fee is four  euros.")
    assert TEXT[citation.start : citation.end] == "four  euros"
    (citation,) = cite("I think it opens at nine o'clock.", COLLECTION, FULL, one_token_a_character(TEXT), None)
    assert (citation.page, TEXT[citation.start : citation.end]) == (1, "It opens at nine")


def test_citations_are_ordered_by_importance():
    importance = torch.zeros(len(TEXT))
    importance[TEXT.rindex("green")] = 1
    pages = [citation.page for citation in cite("green", COLLECTION, FULL, one_token_a_character(TEXT), importance)]
    assert pages == [2, 1]


def test_dropped_text_is_not_cited():
    cut = TEXT.index("The fee") + 5
    plan = Plan(len(TEXT) + 5, (5, 5 + len(TEXT)), (Span(5, cut, Fate.RECOMPUTE), Span(cut, 5 + len(TEXT), Fate.DROP)))
    assert [citation.page for citation in cite("green", COLLECTION, plan, one_token_a_character(TEXT), None)] == [1]
    assert cite("four euros", COLLECTION, plan, one_token_a_character(TEXT), None) == []


@pytest.mark.parametrize(
    ("text", "answer", "cited"),
    [
        *((TEXT, answer, []) for answer in ("gree", "not found", "")),
        *((TEXT, answer, [TEXT.index("four")]) for answer in ('"Four euros."', "**four euros**", "“four euros”")),
        # A number inside another number is not cited.
        (NUMBERS, "12", [NUMBERS.index("12 days"), len(NUMBERS) - 3]),
        ("1.Smith, 2.Jones", "Jones", [11]),
        ("The page says 404 Not Found.", "Not found.", []),
        (LONG, LONG[:450], [0]),
        # A quote that starts inside a word does not hide a shorter one.
        ("An extra car park is open. The key of the house hangs here.", "A car park is the key of the house", [27]),
        ("We met at the old mill by the river. At the old mill we rested.", "It was at the old mill by the lake", [7]),
        # Scripts without spaces.
        ("\u4f4d\u4e8e\u5317\u4eac\u5e02\u3002", "\u5317\u4eac", [2]),
        ("\u4f4d\u4e8e\u5317\u4eac\u5e02\u3002", "\u5b83\u5728\u5317\u4eac\u5e02", [2]),
        *((NOTHING, answer, []) for answer in ("No", "yes.", "Not found in the documents.")),
    ],
)
def test_an_answer_is_cited_where_it_occurs_as_complete_words(text, answer, cited):
    full = full_plan(len(text), (0, len(text)))
    citations = cite(answer, collection_of(text), full, one_token_a_character(text), None)
    assert [citation.start for citation in citations] == cited


def test_several_documents_keep_their_names_and_pages():
    second = Document("b.txt", "Entry costs five euros.", (Page(1, 0, 23),))
    collection = Collection((DOCUMENT, second))
    length = len(collection.text)
    offsets = one_token_a_character(collection.text)
    (citation,) = cite("five euros", collection, full_plan(length, (0, length)), offsets, None)
    assert (citation.document, citation.page, second.text[citation.start : citation.end]) == ("b.txt", 1, "five euros")
    assert touched_pages(collection, 0, length)["pages"] == [1, 2]


def letter_cells(importance, chunk_size, *spans):
    plan = Plan(30, (5, 25), tuple(Span(5 + low, 5 + high, fate) for low, high, fate in spans))
    return document_cells(collection_of(LETTERS), one_token_a_character(LETTERS), plan, importance, chunk_size)


def test_cells_carry_fate_and_mean_importance():
    importance = torch.tensor([0.0] * 8 + [4.0] * 4 + [2.0] * 4 + [1.0] * 4)
    cells = letter_cells(importance, 8, (0, 8, Fate.DROP), (8, 20, Fate.RECOMPUTE))
    assert [(cell.text_start, cell.text_end, cell.end - cell.start, cell.fate, cell.importance) for cell in cells] == [
        (0, 8, 8, Fate.DROP, 0.0),
        (8, 16, 8, Fate.RECOMPUTE, 3.0),
        (16, 20, 4, Fate.RECOMPUTE, 1.0),
    ]


def test_chunks_split_by_fate_and_unscored_cells_have_no_importance():
    cells = letter_cells(None, 16, (0, 3, Fate.RECOMPUTE), (3, 20, Fate.ACCEPT))
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
    cells = document_cells(collection, one_token_a_character(collection.text), full_plan(18, (0, 18)), None, 6)
    pages = list(page_views(collection, cells, []))
    assert [(page["document"], page["number"], [*page["cells"]]) for page in pages] == [
        ("a", 1, [0]),
        ("a", 2, []),
        ("a", 3, [0, 1]),
        ("b", 1, [1, 2]),
    ]
    texts = ["".join(piece["text"] for piece in page["pieces"]) for page in pages]
    assert texts == ["123", "", "678", "abcdefgh"]

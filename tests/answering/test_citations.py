"""Citations: complete words in the text that the target read, with page and sentence."""

import numpy as np
import pytest
import torch

from specprefill_cli.answering.places import cite
from specprefill_cli.documents.document import Collection, Document, Page
from specprefill_cli.prefill.fates import Plan, Span, full_plan
from specprefill_cli.record import Fate
from tests.helpers.samples import collection_of

TEXT = "The gate is green. It opens at nine.\n\nThe fee is four  euros. The green door opens at ten."
DOCUMENT = Document("guide.pdf", TEXT, (Page(1, 0, 36), Page(2, 38, len(TEXT))))
COLLECTION = Collection((DOCUMENT,))
# A token per character keeps the arithmetic simple.
OFFSETS = np.array([(place, place + 1) for place in range(len(TEXT))])
FULL = full_plan(len(TEXT) + 5, (5, 5 + len(TEXT)))
NUMBERS = "It cost 12,000 euros, 3.12 of them in cash, and took 12 days. There were 12."
LONG = " ".join(f"Donaudampfschifffahrt{number}" for number in range(20)) + " ends here."
NOTHING = "There is no parking. Details can be found in the appendix."


def test_matching_ignores_whitespace_and_case():
    (citation,) = cite("Four euros.", COLLECTION, FULL, OFFSETS, None)
    assert (citation.document, citation.page, citation.text) == ("guide.pdf", 2, "The fee is four  euros.")
    assert TEXT[citation.start : citation.end] == "four  euros"


def test_citations_are_ordered_by_importance():
    importance = torch.zeros(len(TEXT))
    importance[TEXT.rindex("green")] = 1
    pages = [citation.page for citation in cite("green", COLLECTION, FULL, OFFSETS, importance)]
    assert pages == [2, 1]


def test_dropped_text_is_not_cited():
    cut = TEXT.index("The fee") + 5
    plan = Plan(len(TEXT) + 5, (5, 5 + len(TEXT)), (Span(5, cut, Fate.RECOMPUTE), Span(cut, 5 + len(TEXT), Fate.DROP)))
    assert [citation.page for citation in cite("green", COLLECTION, plan, OFFSETS, None)] == [1]
    assert cite("four euros", COLLECTION, plan, OFFSETS, None) == []


def citation_starts(text, answer):
    offsets = np.array([(place, place + 1) for place in range(len(text))])
    citations = cite(answer, collection_of(text), full_plan(len(text), (0, len(text))), offsets, None)
    return [citation.start for citation in citations]


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
    assert citation_starts(text, answer) == cited


def test_several_documents_keep_their_names_and_pages():
    other = Document("b.txt", "Entry costs five euros.", (Page(1, 0, 23),))
    collection = Collection((DOCUMENT, other))
    length = len(collection.text)
    offsets = np.array([(place, place + 1) for place in range(length)])
    (citation,) = cite("five euros", collection, full_plan(length, (0, length)), offsets, None)
    assert (citation.document, citation.page, other.text[citation.start : citation.end]) == ("b.txt", 1, "five euros")
    assert collection.pages(0, len(collection.text)) == [1, 2]


def test_a_sentence_is_cited_by_its_longest_quote():
    (citation,) = cite("I think it opens at nine o'clock.", COLLECTION, FULL, OFFSETS, None)
    assert (citation.page, TEXT[citation.start : citation.end]) == (1, "It opens at nine")

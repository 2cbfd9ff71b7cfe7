"""Citations: whole words in the text that the target read, with page and sentence."""

import numpy as np
import torch

from specprefill_cli.answering.citations import cite
from specprefill_cli.documents.document import Collection, Document, Page
from specprefill_cli.prefill.fates import Plan, Span, full_plan
from specprefill_cli.record import Fate

TEXT = "The gate is green. It opens at nine.\n\nThe fee is four  euros. The green door opens at ten."
DOCUMENT = Document("guide.pdf", TEXT, (Page(1, 0, 36), Page(2, 38, len(TEXT))), "application/pdf")
COLLECTION = Collection((DOCUMENT,))
# A token per character keeps the arithmetic simple.
OFFSETS = np.array([(place, place + 1) for place in range(len(TEXT))])
FULL = full_plan(len(TEXT) + 5, (5, 5 + len(TEXT)))


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


def test_partial_words_and_absent_answers_are_not_cited():
    assert cite("gree", COLLECTION, FULL, OFFSETS, None) == []
    assert cite("not found", COLLECTION, FULL, OFFSETS, None) == []
    assert cite("", COLLECTION, FULL, OFFSETS, None) == []


def citation_starts(text, answer):
    collection = Collection((Document("a.txt", text, (Page(1, 0, len(text)),), "text/plain"),))
    offsets = np.array([(place, place + 1) for place in range(len(text))])
    return [
        citation.start for citation in cite(answer, collection, full_plan(len(text), (0, len(text))), offsets, None)
    ]


def test_a_number_inside_another_number_is_not_cited():
    text = "It cost 12,000 euros, 3.12 of them in cash, and took 12 days. There were 12."
    assert citation_starts(text, "12") == [text.index("12 days"), len(text) - 3]
    assert citation_starts("1.Smith, 2.Jones", "Jones") == [11]


def test_not_found_has_no_citation_even_if_the_text_contains_it():
    assert citation_starts("The page says 404 Not Found.", "Not found.") == []


def test_a_long_quote_is_cited():
    text = " ".join(f"Donaudampfschifffahrt{number}" for number in range(20)) + " ends here."
    assert citation_starts(text, text[:450]) == [0]


def test_a_quote_starting_inside_a_word_does_not_hide_a_shorter_quote():
    (start,) = citation_starts(
        "An extra car park is open. The key of the house hangs here.", "A car park is the key of the house"
    )
    assert start == 27


def test_several_documents_keep_their_names_and_pages():
    other = Document("b.txt", "Entry costs five euros.", (Page(1, 0, 23),), "text/plain")
    collection = Collection((DOCUMENT, other))
    offsets = np.array([(place, place + 1) for place in range(len(collection.text))])
    (citation,) = cite(
        "five euros", collection, full_plan(len(collection.text), (0, len(collection.text))), offsets, None
    )
    assert (citation.document, citation.page, other.text[citation.start : citation.end]) == ("b.txt", 1, "five euros")
    assert collection.pages(0, len(collection.text)) == [1, 2]


def test_a_sentence_is_cited_by_its_longest_quote():
    (citation,) = cite("I think it opens at nine o'clock.", COLLECTION, FULL, OFFSETS, None)
    assert (citation.page, TEXT[citation.start : citation.end]) == (1, "It opens at nine")


def test_yes_no_and_not_found_answers_are_not_cited():
    document = Document(
        "a.txt", "There is no parking. Details can be found in the appendix.", (Page(1, 0, 59),), "text/plain"
    )
    collection = Collection((document,))
    offsets = np.array([(place, place + 1) for place in range(len(document.text))])
    plan = full_plan(len(offsets) + 5, (5, 5 + len(offsets)))
    for answer in ("No", "yes.", "Not found in the documents."):
        assert cite(answer, collection, plan, offsets, None) == []


def test_quotation_marks_and_emphasis_are_ignored():
    for answer in ('"Four euros."', "**four euros**", "“four euros”"):
        (citation,) = cite(answer, COLLECTION, FULL, OFFSETS, None)
        assert citation.page == 2


def test_scripts_without_spaces_are_cited():
    text = "\u4f4d\u4e8e\u5317\u4eac\u5e02\u3002"
    assert citation_starts(text, "\u5317\u4eac") == [2]
    assert citation_starts(text, "\u5b83\u5728\u5317\u4eac\u5e02") == [2]


def test_the_longest_of_several_quotes_is_cited():
    text = "We met at the old mill by the river. At the old mill we rested."
    assert citation_starts(text, "It was at the old mill by the lake") == [text.index("at the old mill by")]

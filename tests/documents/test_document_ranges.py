"""Pages and character ranges."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specprefill_cli.documents import Document, page_ranges
from specprefill_cli.documents.document import join_pages

page_texts = st.lists(st.text("ab\n", max_size=5), min_size=1, max_size=8)


@settings(deadline=None)
@given(page_texts)
def test_page_ranges_cover_the_text_of_each_page_exactly(texts: list[str]) -> None:
    text, pages = join_pages(texts)
    assert [text[page.start : page.end] for page in pages] == texts
    assert [page.number for page in pages] == list(range(1, len(texts) + 1))
    assert text == "\n\n".join(filter(None, texts))


@settings(deadline=None)
@given(page_texts, st.data())
def test_pages_between_equals_a_search_of_all_pages(texts: list[str], data: st.DataObject) -> None:
    text, pages = join_pages(texts)
    document = Document("d", text, pages, "application/pdf")
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    touched = tuple(page.number for page in pages if set(range(page.start, page.end)) & set(range(start, end)))
    assert document.pages_between(start, end) == touched


@pytest.mark.parametrize(
    ("numbers", "words"), [([4], "page 4"), ([1, 2, 3], "pages 1-3"), ([1, 2, 3, 7, 9, 10], "pages 1-3, 7, 9-10")]
)
def test_page_ranges_in_words(numbers: list[int], words: str) -> None:
    assert page_ranges(numbers) == words

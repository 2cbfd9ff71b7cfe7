"""A document: its text, and the character range of each page."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Page:
    """One page: its 1-based number and the characters `[start, end)` that it covers in the document's text."""

    number: int
    start: int
    end: int


@dataclass(frozen=True)
class Document:
    """The text of one document. Pages are in order and never overlap; formats without pages have one page.

    A page without text has `start == end`. `warnings` are one-line sentences about text that may be missing or wrong.
    `name` may hold any character that a file name may, bytes that are no text as surrogates; `one_line` makes it safe.
    """

    name: str
    text: str
    pages: tuple[Page, ...]
    media_type: str
    warnings: tuple[str, ...] = ()

    def pages_between(self, start: int, end: int) -> tuple[int, ...]:
        """Return the numbers of the pages that share at least one character with `[start, end)`, in order.

        A range inside the separator of two pages touches none. Raises ValueError for a range outside the text.
        """
        if not 0 <= start <= end <= len(self.text):
            raise ValueError(f"[{start}, {end}) is not a range of a text of {len(self.text)} characters")
        if start == end:
            return ()
        first = bisect_right(self.pages, start, key=lambda page: page.end)
        last = bisect_left(self.pages, end, key=lambda page: page.start)
        return tuple(page.number for page in self.pages[first:last] if page.start < page.end)


def one_page_document(name: str, text: str, media_type: str, warnings: tuple[str, ...] = ()) -> Document:
    """Build a document of a format without pages: all its text is page 1."""
    return Document(name, text, (Page(1, 0, len(text)),), media_type, warnings)


def join_pages(texts: Iterable[str]) -> tuple[str, tuple[Page, ...]]:
    """Join page texts with blank lines, and return the range of each; pages without text add no separator."""
    parts: list[str] = []
    pages: list[Page] = []
    position = 0
    for number, text in enumerate(texts, start=1):
        if text and position:
            parts.append("\n\n")
            position += 2
        pages.append(Page(number, position, position + len(text)))
        parts.append(text)
        position += len(text)
    return "".join(parts), tuple(pages)


def page_ranges(numbers: Iterable[int]) -> str:
    """Write ascending page numbers as `page 4` or `pages 1-3, 7`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    text = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"page {text}" if text.isdigit() else f"pages {text}"

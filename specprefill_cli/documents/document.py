"""A document: its text and the character range of each page. A collection: the documents that a question is about."""

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, groupby
from typing import Any

from specprefill_cli.documents.language import language_of
from specprefill_cli.errors import UsageError, one_line

SEPARATOR = "\n\n"
# Memory, in bytes, for documents kept for further questions.
KEPT_BYTES = 2**28


@dataclass(frozen=True)
class Page:
    """A page: its 1-based number and its character range `[start, end)` in the document's text."""

    number: int
    start: int
    end: int


@dataclass(frozen=True)
class Document:
    """The text of a document. Pages are in order and never overlap; a format without pages has a single page.

    name: any characters of a file name, and surrogates for undecodable bytes; `one_line` makes it safe
    warnings: sentences about text that may be missing or wrong
    origin, number: place of a part in the whole document, and the index of that among all documents (None: not a part)
    """

    name: str
    text: str
    pages: tuple[Page, ...]
    warnings: tuple[str, ...] = ()
    origin: int = 0
    number: int | None = None

    def pages_between(self, start: int, end: int) -> tuple[int, ...]:
        """The numbers of the pages that overlap `[start, end)`, in order; none between two pages."""
        if start == end:
            return ()
        first = bisect_right(self.pages, start, key=lambda page: page.end)
        last = bisect_left(self.pages, end, key=lambda page: page.start)
        return tuple(page.number for page in self.pages[first:last] if page.start < page.end)


def one_page_document(name: str, text: str) -> Document:
    """Build a document in a format without pages: all its text is page 1."""
    return Document(name, text, (Page(1, 0, len(text)),))


def join_pages(texts: Iterable[str]) -> tuple[str, tuple[Page, ...]]:
    """Join page texts with blank lines and return the text and the pages; pages without text add no separator."""
    joined, pages = "", []
    for number, text in enumerate(texts, start=1):
        joined += SEPARATOR if text and joined else ""
        pages.append(Page(number, len(joined), len(joined) + len(text)))
        joined += text
    return joined, tuple(pages)


def page_ranges(numbers: Iterable[int]) -> str:
    """Write ascending page numbers as `page 4` or `pages 1-3, 7`."""
    places = groupby(enumerate(numbers), key=lambda place: place[1] - place[0])
    runs = [[number for _, number in run] for _, run in places]
    text = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
    return f"page {text}" if text.isdigit() else f"pages {text}"


@dataclass(frozen=True)
class DocumentPages:
    """Some pages of a document, by number."""

    document: str
    pages: list[int]


@dataclass(frozen=True)
class Collection:
    """The documents of a question, in order, separated by a blank line.

    skipped: sentences about what was not read; left_out: number of documents that the shortlist left out
    kept: whether what is computed of the documents may be kept on disk, too
    """

    documents: tuple[Document, ...]
    skipped: tuple[str, ...] = ()
    left_out: int = 0
    kept: bool = False

    def __post_init__(self) -> None:
        if not self.documents or not all(isinstance(document, Document) for document in self.documents):
            raise UsageError("no documents; give those that `read_documents` returns")

    @cached_property
    def text(self) -> str:
        return SEPARATOR.join(document.text for document in self.documents)

    @property
    def bytes(self) -> int:
        return 2 * sum(sys.getsizeof(document.text) for document in self.documents)

    @property
    def warnings(self) -> list[str]:
        """The skipped files, then the warnings of all documents, each with its document's name."""
        named = ((one_line(document.name), document.warnings) for document in self.documents)
        return [*self.skipped, *(f"{name}: {warning}" for name, warnings in named for warning in warnings)]

    @cached_property
    def languages(self) -> tuple[str, ...]:
        """The language of each document; that of the whole text where a document's own does not tell."""
        whole = language_of(self.text)
        return tuple(language_of(document.text, whole) for document in self.documents)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Character at which each document begins in `text`."""
        return tuple(accumulate((len(document.text) + len(SEPARATOR) for document in self.documents), initial=0))[:-1]

    def ranges_by_document(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """The documents that characters [start, end) of `text` touch: index of each, and the range in its own text."""
        numbers = range(max(0, bisect_right(self.starts, start) - 1), bisect_left(self.starts, end))
        places = ((number, self.starts[number], len(self.documents[number].text)) for number in numbers)
        ranges = ((number, max(0, start - origin), min(length, end - origin)) for number, origin, length in places)
        return [(number, first, last) for number, first, last in ranges if first < last]

    def in_whole(self, places: Sequence[Any]) -> list[Any]:
        """Citations or passages with their ranges in whole documents and the indices of these, where parts were read."""
        parts = ((place, self.documents[place.number].origin, self.numbers[place.number]) for place in places)
        return [replace(place, start=place.start + at, end=place.end + at, number=index) for place, at, index in parts]

    @cached_property
    def numbers(self) -> list[int]:
        """The index of each document among all, also of those whose parts were not read."""
        return [n if document.number is None else document.number for n, document in enumerate(self.documents)]

    def part_number(self, place: Any) -> int:
        """The index here of the document that holds a place of `in_whole`."""
        starts = ((whole, document.origin) for whole, document in zip(self.numbers, self.documents, strict=True))
        return max(n for n, (whole, origin) in enumerate(starts) if whole == place.number and origin <= place.start)

    def pages_by_document(self, start: int, end: int) -> list[DocumentPages]:
        touched = ((self.documents[number], first, last) for number, first, last in self.ranges_by_document(start, end))
        return [DocumentPages(document.name, list(document.pages_between(*ends))) for document, *ends in touched]

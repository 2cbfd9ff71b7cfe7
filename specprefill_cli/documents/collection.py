"""Several documents as one text, and the way back from a character of it to document and page."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

from specprefill_cli.documents.document import Document

SEPARATOR = "\n\n"


@dataclass(frozen=True)
class DocumentPages:
    """Some pages of one document, by number."""

    document: str
    pages: list[int]


@dataclass(frozen=True)
class Collection:
    """The documents of one question, in order, separated by a blank line."""

    documents: tuple[Document, ...]

    @cached_property
    def text(self) -> str:
        return SEPARATOR.join(document.text for document in self.documents)

    @property
    def warnings(self) -> list[str]:
        """What reading the documents told, each with its document's name."""
        return [f"{one.name}: {warning}" for one in self.documents for warning in one.warnings]

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Character at which each document begins in `text`."""
        starts, position = [], 0
        for document in self.documents:
            starts.append(position)
            position += len(document.text) + len(SEPARATOR)
        return tuple(starts)

    def parts(self, start: int, end: int) -> list[tuple[Document, int, int]]:
        """The documents that characters [start, end) of `text` touch, each with the range in its own text."""
        found = []
        for place in range(max(0, bisect_right(self.starts, start) - 1), len(self.documents)):
            document, origin = self.documents[place], self.starts[place]
            if origin >= end and start != end:
                break
            low, high = max(0, start - origin), min(len(document.text), end - origin)
            if low < high:
                found.append((document, low, high))
        return found

    def pages_by_document(self, start: int, end: int) -> list[DocumentPages]:
        """The documents that characters [start, end) of `text` touch, each with the pages of its own."""
        return [
            DocumentPages(document.name, document.pages_between(low, high))
            for document, low, high in self.parts(start, end)
        ]

    def pages(self, start: int, end: int) -> list[int]:
        """Numbers of the pages that characters [start, end) of `text` touch, each document's in turn."""
        return list(dict.fromkeys(page for one in self.pages_by_document(start, end) for page in one.pages))

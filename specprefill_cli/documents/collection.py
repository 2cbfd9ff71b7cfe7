"""Several documents as one text, and the way back from its characters to documents and pages."""

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from specprefill_cli.documents.document import Document
from specprefill_cli.documents.errors import one_line

SEPARATOR = "\n\n"


@dataclass(frozen=True)
class DocumentPages:
    """Some pages of one document, by number."""

    document: str
    pages: list[int]


@dataclass(frozen=True)
class Collection:
    """The documents of one question, in order, separated by a blank line.

    skipped: sentences about files of their folders and patterns that were not read
    """

    documents: tuple[Document, ...]
    skipped: tuple[str, ...] = ()

    @cached_property
    def text(self) -> str:
        return SEPARATOR.join(document.text for document in self.documents)

    @property
    def warnings(self) -> list[str]:
        """What was skipped, then the warnings of all documents, each with its document's name."""
        own = (f"{one_line(document.name)}: {warning}" for document in self.documents for warning in document.warnings)
        return [*self.skipped, *own]

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Character at which each document begins in `text`."""
        return tuple(accumulate((len(document.text) + len(SEPARATOR) for document in self.documents), initial=0))[:-1]

    def parts(self, start: int, end: int) -> list[tuple[Document, int, int]]:
        """The documents that characters [start, end) of `text` touch, each with the range in its own text."""
        parts = []
        for index in range(max(0, bisect_right(self.starts, start) - 1), len(self.documents)):
            document, origin = self.documents[index], self.starts[index]
            if origin >= end and start != end:
                break
            first, last = max(0, start - origin), min(len(document.text), end - origin)
            if first < last:
                parts.append((document, first, last))
        return parts

    def pages_by_document(self, start: int, end: int) -> list[DocumentPages]:
        """The documents that characters [start, end) of `text` touch, each with the pages touched."""
        return [
            DocumentPages(document.name, list(document.pages_between(first, last)))
            for document, first, last in self.parts(start, end)
        ]

    def pages(self, start: int, end: int) -> list[int]:
        """Numbers of the pages that characters [start, end) of `text` touch, without their documents."""
        return list(dict.fromkeys(page for touched in self.pages_by_document(start, end) for page in touched.pages))

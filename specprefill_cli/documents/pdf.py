"""PDF: pages of text, and clear words for PDFs that have none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specprefill_cli.documents.deadline import run_with_deadline
from specprefill_cli.documents.document import Document, join_pages, page_ranges
from specprefill_cli.documents.errors import DocumentError, document_error, one_line
from specprefill_cli.documents.reader import FormatReader, Limits

if TYPE_CHECKING:  # the parser's module loads pypdf
    from specprefill_cli.documents.pdf_parser import Extraction

_OCR = "run OCR first, for example ocrmypdf"


def read_pdf(data: bytes, name: str, limits: Limits) -> Document:
    """The text of a PDF, page by page, with warnings for pages without text and for repaired damage.

    Raises DocumentError: password needed, damaged, no text on any page, or a limit exceeded (pages, characters,
    seconds).
    """
    from specprefill_cli.documents.pdf_parser import Extraction, extract_pages, quiet_pypdf

    found = Extraction()
    with quiet_pypdf() as complaints:
        try:
            run_with_deadline(lambda stop: extract_pages(data, name, limits, found, stop), limits.max_seconds)
        except TimeoutError:
            raise _too_slow(name, limits, found) from None
    _require_text(name, found)
    text, pages = join_pages(found.texts)
    return Document(name, text, pages, READER.media_type, _warnings(found, complaints))


def _too_slow(name: str, limits: Limits, found: Extraction) -> DocumentError:
    done = len(found.texts)
    read = f"{page_ranges(range(1, done + 1))} of {found.page_count} read" if done else "no page read"
    what = f"reading took longer than {limits.max_seconds:g} s ({read})"
    return document_error(name, what, "split the file or print it to a new PDF")


def _require_text(name: str, found: Extraction) -> None:
    if any(found.texts):
        return
    if not found.page_count:
        raise document_error(name, "the PDF has no pages", "fetch it again")
    if found.damaged:
        what = f"{page_ranges(found.damaged)} cannot be read ({found.reason})"
        raise document_error(name, f"the PDF is damaged: {what}", "repair it (for example: qpdf in.pdf out.pdf)")
    raise document_error(name, _no_text(range(1, found.page_count + 1)), _OCR)


def _no_text(numbers: Sequence[int]) -> str:
    return f"{page_ranges(numbers)} {'holds' if len(numbers) == 1 else 'hold'} no text (scanned?)"


def _warnings(found: Extraction, complaints: list[str]) -> tuple[str, ...]:
    damaged = set(found.damaged)
    empty = [number for number, text in enumerate(found.texts, start=1) if not text and number not in damaged]
    warnings = []
    if empty:
        warnings.append(f"{_no_text(empty)}; {_OCR}")
    if damaged:
        warnings.append(f"{page_ranges(found.damaged)} could not be read: damaged ({found.reason})")
    if complaints:
        many = "problem" if len(complaints) == 1 else "problems"
        warnings.append(
            f"the PDF has {len(complaints)} {many}, text may be missing or wrong; the first: {complaints[0]}"
        )
    return tuple(map(one_line, warnings))


READER = FormatReader((".pdf",), "application/pdf", read_pdf)

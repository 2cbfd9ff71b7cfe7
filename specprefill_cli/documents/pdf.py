"""PDF: pages of text, and clear words for PDFs that have none. pypdf is imported inside functions: loading it takes time."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from typing import TYPE_CHECKING

from specprefill_cli.documents.cleaning import clean_characters, collapse_blank_lines
from specprefill_cli.documents.deadline import Abandoned, check_stop, run_with_deadline
from specprefill_cli.documents.document import Document, join_pages, page_ranges
from specprefill_cli.documents.errors import document_error, one_line
from specprefill_cli.documents.paragraphs import join_lines
from specprefill_cli.documents.reader import FormatReader, Limits
from specprefill_cli.errors import first_line

if TYPE_CHECKING:
    from pypdf import PdfReader

_OCR = "run OCR first, for example ocrmypdf"
_REPAIR = "repair it (for example: qpdf in.pdf out.pdf)"


@dataclass
class Extraction:
    """What has been read so far, page by page: it also says how far a parser came that is out of time.

    texts: cleaned, one a page; empty for a page without text
    unreadable: numbers of the pages on which the parser failed; reason: its words about the first of them
    """

    page_count: int = 0
    texts: list[str] = field(default_factory=list)
    unreadable: list[int] = field(default_factory=list)
    reason: str = ""


def read_pdf(data: bytes, name: str, limits: Limits) -> Document:
    """Read the text page by page, with warnings for pages without text and for repaired damage.

    Raises DocumentError: password needed, damaged, no text on any page, or a limit exceeded (pages, characters,
    seconds).
    """
    extraction = Extraction()
    with quiet_pypdf() as complaints:
        try:
            run_with_deadline(lambda stop: extract_pages(data, name, limits, extraction, stop), limits.max_seconds)
        except TimeoutError:
            pages_read = len(extraction.texts)
            progress = (
                f"{page_ranges(range(1, pages_read + 1))} of {extraction.page_count}" if pages_read else "no page"
            )
            cause = f"reading took longer than {limits.max_seconds:g} s ({progress} read)"
            raise document_error(name, cause, "split the file or print it to a new PDF") from None
    _require_text(name, extraction)
    text, pages = join_pages(extraction.texts)
    return Document(name, text, pages, READER.media_type, _warnings(extraction, complaints))


def extract_pages(data: bytes, name: str, limits: Limits, extraction: Extraction, stop: threading.Event) -> None:
    """Read the text of every page into `extraction`; a page on which pypdf fails is noted there, not fatal.

    Raises DocumentError: password needed, damaged as a whole, more pages or characters than `limits` allow. Raises
    Abandoned once `stop` is set.
    """
    reader, extraction.page_count = open_pdf(data, name)
    if extraction.page_count > limits.max_pages:
        cause = f"{extraction.page_count:,} pages, the limit is {limits.max_pages:,}"
        raise document_error(name, cause, "split it (for example: qpdf --split-pages=1000)")
    characters = 0
    for index in range(extraction.page_count):
        check_stop(stop)
        try:
            text = reader.pages[index].extract_text(visitor_operand_before=lambda *_: check_stop(stop))
        except Abandoned:
            raise
        except Exception as error:
            # pypdf fails with more than PyPdfError: DependencyError (JBIG2), DeprecationError, lookups, recursion, zlib.
            extraction.unreadable.append(index + 1)
            extraction.reason = extraction.reason or first_line(error)
            text = ""
        text = collapse_blank_lines(join_lines(clean_characters(text))).strip()
        characters += len(text)
        if characters > limits.max_characters:
            cause = f"more than {limits.max_characters:,} characters of text (reached on page {index + 1})"
            raise document_error(name, cause, "split it into smaller files")
        extraction.texts.append(text)


def open_pdf(data: bytes, name: str) -> tuple[PdfReader, int]:
    """Open a PDF and count its pages. Raises DocumentError: encrypted, damaged, or a package is missing."""
    from pypdf import PdfReader
    from pypdf.errors import DependencyError

    try:
        reader = PdfReader(BytesIO(data))
        # Many PDFs are encrypted with an empty password, only to restrict printing: those open for everyone.
        locked = reader.is_encrypted and not reader.decrypt("")
        page_count = 0 if locked else len(reader.pages)
    except DependencyError as error:
        raise document_error(name, f"reading this PDF needs what is not installed ({error})", "install it") from error
    except Exception as error:
        truncated = b"%%EOF" not in data[-2048:]
        cause = "truncated (its end is missing)" if truncated else f"damaged ({first_line(error)})"
        raise document_error(name, f"the PDF is {cause}", f"fetch it again, or {_REPAIR}") from error
    if locked:
        remedy = "remove the password first (for example: qpdf --password=... --decrypt)"
        raise document_error(name, "the PDF is encrypted", remedy)
    return reader, page_count


@contextmanager
def quiet_pypdf() -> Iterator[list[str]]:
    """Keep pypdf's log and Python's warnings from the terminal, and yield the list of pypdf's complaints.

    pypdf repairs damage and says so in its log only: a page may lose text without an exception. Logging and warnings
    are global, so this is not for several threads at once.
    """
    complaints: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            complaints.append(record.getMessage())

    logger = logging.getLogger("pypdf")
    collector, propagate = Collector(logging.WARNING), logger.propagate
    logger.addHandler(collector)
    logger.propagate = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield complaints
    finally:
        logger.removeHandler(collector)
        logger.propagate = propagate


def _require_text(name: str, extraction: Extraction) -> None:
    if any(extraction.texts):
        return
    if not extraction.page_count:
        raise document_error(name, "the PDF has no pages", "fetch it again")
    if extraction.unreadable:
        cause = f"{page_ranges(extraction.unreadable)} cannot be read ({extraction.reason})"
        raise document_error(name, f"no text can be read from the PDF: {cause}", _REPAIR)
    raise document_error(name, _no_text(range(1, extraction.page_count + 1)), _OCR)


def _no_text(numbers: Sequence[int]) -> str:
    return f"{page_ranges(numbers)} {'holds' if len(numbers) == 1 else 'hold'} no text (scanned?)"


def _warnings(extraction: Extraction, complaints: list[str]) -> tuple[str, ...]:
    texts, unreadable = enumerate(extraction.texts, start=1), extraction.unreadable
    messages = []
    if empty := [number for number, text in texts if not text and number not in unreadable]:
        messages.append(f"{_no_text(empty)}; {_OCR}")
    if unreadable:
        messages.append(f"{page_ranges(unreadable)} could not be read ({extraction.reason})")
    if complaints:
        problems = "problem" if len(complaints) == 1 else "problems"
        messages.append(
            f"the PDF has {len(complaints)} {problems}, text may be missing or wrong; the first: {complaints[0]}"
        )
    return tuple(map(one_line, messages))


READER = FormatReader((".pdf",), "application/pdf", read_pdf)

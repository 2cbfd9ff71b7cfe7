"""PDF: pages of text, and clear errors for PDFs without text. pypdf is imported inside functions, because that is slow."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING

from specprefill_cli.documents.cleaning import clean_characters, clean_text
from specprefill_cli.documents.document import page_ranges
from specprefill_cli.documents.paragraphs import join_lines
from specprefill_cli.documents.reader import Abandoned, Pages, SourceFile, check_stop
from specprefill_cli.errors import first_line

if TYPE_CHECKING:
    from pypdf import PdfReader

OCR = "run OCR first, for example ocrmypdf"
REPAIR = "repair it (for example: qpdf in.pdf out.pdf)"


class Complaints(logging.Handler):
    """Collects pypdf's log by thread: pypdf repairs damage, and reports only in its log that a page may have lost text."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.of_thread = threading.local()

    def collect(self) -> list[str]:
        """Return a list that collects pypdf's log messages in this thread from now on. The terminal does not show them."""
        logger = logging.getLogger("pypdf")
        logger.propagate = False
        logger.addHandler(self)
        self.of_thread.messages = []
        return self.of_thread.messages

    def emit(self, record: logging.LogRecord) -> None:
        getattr(self.of_thread, "messages", []).append(record.getMessage())


COMPLAINTS = Complaints()


def pages(file: SourceFile) -> Pages:
    """Yield the text of each page; a page without text, or on which pypdf fails, adds a warning.

    Raises DocumentError for a PDF that needs a password, is damaged as a whole, or has too many pages or no text at all.
    """
    failures: dict[int, str] = {}
    complaints = COMPLAINTS.collect()
    reader = open_pdf(file)
    for number in range(1, file.page_count + 1):
        text = ""
        try:
            page = reader.pages[number - 1]
            text = page.extract_text(visitor_operand_before=lambda *_: check_stop(file.stop))
        except Abandoned:
            raise
        except Exception as error:
            # pypdf raises more than PyPdfError: DependencyError (JBIG2), DeprecationError, lookup and recursion errors.
            failures[number] = first_line(error)
        yield clean_text(join_lines(clean_characters(text))).strip()
    add_warnings(file, failures, complaints)


def open_pdf(file: SourceFile) -> PdfReader:
    """Open a PDF and count its pages.

    Raises DocumentError if it is encrypted or damaged, has more pages than the limits allow, or a package is missing.
    """
    from pypdf import PdfReader

    try:
        reader = PdfReader(BytesIO(file.data))
        # Many PDFs are encrypted with an empty password, only to restrict printing: anyone can open them.
        locked = reader.is_encrypted and not reader.decrypt("")
        file.page_count = 0 if locked else len(reader.pages)
    except Exception as error:
        truncated = b"%%EOF" not in file.data[-2048:]
        cause = "truncated (its end is missing)" if truncated else f"damaged ({first_line(error)})"
        raise file.error(f"the PDF is {cause}", f"fetch it again, or {REPAIR}") from error
    if locked:
        remedy = "remove the password first (for example: qpdf --password=... --decrypt)"
        raise file.error("the PDF is encrypted", remedy)
    if file.page_count > file.limits.max_pages:
        cause = f"{file.page_count:,} pages, the limit is {file.limits.max_pages:,}"
        raise file.error(cause, "split it (for example: qpdf --split-pages=1000)")
    return reader


def add_warnings(file: SourceFile, failures: Mapping[int, str], complaints: Sequence[str]) -> None:
    """Warn of pages without text, of pages on which pypdf failed, and of repaired damage.

    failures: reason by page number

    Raises DocumentError if no page has text.
    """
    if not file.texts:
        raise file.error("the PDF has no pages", "fetch it again")
    empty_pages = [number for number, text in enumerate(file.texts, start=1) if not text and number not in failures]
    no_text = f"{page_ranges(empty_pages)} {'holds' if len(empty_pages) == 1 else 'hold'} no text (scanned?)"
    failed = f"{page_ranges(failures)} could not be read ({next(iter(failures.values()))})" if failures else ""
    if not any(file.texts):
        if failed:
            raise file.error(f"no text can be read from the PDF: {failed}", REPAIR)
        raise file.error(no_text, OCR)
    if empty_pages:
        file.warnings.append(f"{no_text}; {OCR}")
    if failed:
        file.warnings.append(failed)
    if complaints:
        problems = "problem" if len(complaints) == 1 else "problems"
        file.warnings.append(
            f"the PDF has {len(complaints)} {problems}, text may be missing or wrong; the first: {complaints[0]}"
        )

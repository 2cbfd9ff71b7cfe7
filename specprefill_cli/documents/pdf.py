"""PDF: pages of text, and clear words for PDFs that have none. pypdf is imported inside functions: loading it takes time."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING

from specprefill_cli.documents.cleaning import clean_characters, collapse_blank_lines
from specprefill_cli.documents.document import page_ranges
from specprefill_cli.documents.paragraphs import join_lines
from specprefill_cli.documents.reader import Abandoned, FormatReader, Pages, SourceFile, check_stop
from specprefill_cli.errors import first_line

if TYPE_CHECKING:
    from pypdf import PageObject, PdfReader

# Keeps logging from showing what no other handler takes.
SILENCE = logging.NullHandler()
_OCR = "run OCR first, for example ocrmypdf"
_REPAIR = "repair it (for example: qpdf in.pdf out.pdf)"
# In the group, tokens of a content stream that are well-formed: strings, brackets, names, numbers, operators. Outside it
# unbalanced strings, inline images and comments. Nothing here backtracks over more than one token.
_TOKENS = re.compile(
    rb"(\((?:[^\\()]++|\\.|\([^\\()]*+\))*+\)|<[\s0-9A-Fa-f]*+>|[\[\]]"
    rb"|/[^\s()<>\[\]{}/%]*|[-+.\d]+|(?!BI\b)[A-Za-z'\"][\w*]*)"
    rb"|\((?:[^\\)]++|\\.)*+|BI\b.*?(?:\bEI\b|\Z)|%[^\r\n]*",
    re.DOTALL,
)
# How the tokens begin that an array may hold, or that end it.
_ARRAY_TOKENS = b"(</+-.0123456789]"


def pages(file: SourceFile) -> Pages:
    """Yield the text of each page; one without text, or on which pypdf fails, is a warning.

    Raises DocumentError: password needed, damaged as a whole, too many pages, no text on any page.
    """
    failures: dict[int, str] = {}
    with pypdf_complaints() as complaints:
        reader = open_pdf(file)
        for number in range(1, file.page_count + 1):
            text = ""
            for extract in (extract_text, extract_damaged_text):
                try:
                    text = extract(reader.pages[number - 1], file)
                    break
                except Abandoned:
                    raise
                except Exception as error:
                    # pypdf fails with more than PyPdfError: DependencyError (JBIG2), DeprecationError, lookups, recursion.
                    failures.setdefault(number, first_line(error))
            yield collapse_blank_lines(join_lines(clean_characters(text))).strip()
    add_warnings(file, failures, complaints)


def extract_text(page: PageObject, file: SourceFile) -> str:
    """Return the text of a page. Raises Abandoned once nobody waits for it."""
    return page.extract_text(visitor_operand_before=lambda *_: check_stop(file.stop))


def extract_damaged_text(page: PageObject, file: SourceFile) -> str:
    """Return the text of a page on which pypdf fails at the first malformed token: without these tokens."""
    from pypdf.generic import DecodedStreamObject, NameObject

    contents = page.get_contents()
    repaired = DecodedStreamObject()
    repaired.set_data(well_formed(contents.get_data()) if contents is not None else b"")
    page[NameObject("/Contents")] = repaired
    return extract_text(page, file)


def well_formed(contents: bytes) -> bytes:
    """Keep the well-formed tokens of a content stream, but no images, dictionaries, or operators inside arrays."""
    kept = bytearray()
    in_array = False
    for match in _TOKENS.finditer(contents):
        token = match[1]
        if token == b"TJ" and in_array:  # of an array that was never closed
            token = b"] TJ"
        elif token is None or (token[:1] not in _ARRAY_TOKENS if in_array else token == b"]"):
            continue
        in_array = token == b"[" or (in_array and not token.startswith(b"]"))
        kept += token + b" "
    return bytes(kept)


def open_pdf(file: SourceFile) -> PdfReader:
    """Open a PDF and count its pages.

    Raises DocumentError: encrypted, damaged, more pages than the limits allow, or a package is missing.
    """
    from pypdf import PdfReader
    from pypdf.errors import DependencyError

    try:
        reader = PdfReader(BytesIO(file.data))
        # Many PDFs are encrypted with an empty password, only to restrict printing: those open for everyone.
        locked = reader.is_encrypted and not reader.decrypt("")
        file.page_count = 0 if locked else len(reader.pages)
    except DependencyError as error:
        raise file.error(f"reading this PDF needs a package that is not installed ({error})", "install it") from error
    except Exception as error:
        truncated = b"%%EOF" not in file.data[-2048:]
        cause = "truncated (its end is missing)" if truncated else f"damaged ({first_line(error)})"
        raise file.error(f"the PDF is {cause}", f"fetch it again, or {_REPAIR}") from error
    if locked:
        remedy = "remove the password first (for example: qpdf --password=... --decrypt)"
        raise file.error("the PDF is encrypted", remedy)
    if file.page_count > file.limits.max_pages:
        cause = f"{file.page_count:,} pages, the limit is {file.limits.max_pages:,}"
        raise file.error(cause, "split it (for example: qpdf --split-pages=1000)")
    return reader


class Collector(logging.Handler):
    """Collects the warnings of the thread that made it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.thread = threading.get_ident()
        self.complaints: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self.thread:
            self.complaints.append(record.getMessage())


@contextmanager
def pypdf_complaints() -> Iterator[list[str]]:
    """Yield the list of pypdf's complaints in this thread; its log never reaches the terminal again.

    pypdf repairs damage and says so in its log only: a page may lose text without an exception. A parser that is out of
    time may end while the next file is read.
    """
    logger, collector = logging.getLogger("pypdf"), Collector()
    logger.propagate = False
    logger.addHandler(SILENCE)
    logger.addHandler(collector)
    try:
        yield collector.complaints
    finally:
        logger.removeHandler(collector)


def add_warnings(file: SourceFile, failures: Mapping[int, str], complaints: Sequence[str]) -> None:
    """Warn of pages without text, of pages on which pypdf failed (page number to reason), and of repaired damage.

    Raises DocumentError where no page has text.
    """
    if not file.texts:
        raise file.error("the PDF has no pages", "fetch it again")
    empty = [number for number, text in enumerate(file.texts, start=1) if not text and number not in failures]
    no_text = f"{page_ranges(empty)} {'holds' if len(empty) == 1 else 'hold'} no text (scanned?)"
    unreadable = [number for number in failures if not file.texts[number - 1]]
    repaired = [number for number in failures if file.texts[number - 1]]
    failed = f"{page_ranges(unreadable)} could not be read ({failures[unreadable[0]]})" if unreadable else ""
    if not any(file.texts):
        raise (
            file.error(f"no text can be read from the PDF: {failed}", _REPAIR) if failed else file.error(no_text, _OCR)
        )
    if empty:
        file.warnings.append(f"{no_text}; {_OCR}")
    if unreadable:
        file.warnings.append(failed)
    if repaired:
        reason = failures[repaired[0]]
        file.warnings.append(f"{page_ranges(repaired)} had to be repaired, text may be missing or wrong ({reason})")
    if complaints:
        problems = "problem" if len(complaints) == 1 else "problems"
        file.warnings.append(
            f"the PDF has {len(complaints)} {problems}, text may be missing or wrong; the first: {complaints[0]}"
        )


READER = FormatReader((".pdf",), "application/pdf", pages)

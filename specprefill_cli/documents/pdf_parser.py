"""The only module that talks to pypdf: bytes -> page texts, and what pypdf complained about.

Import it inside functions only: it loads pypdf.
"""

import logging
import struct
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from typing import TypeVar

from pypdf import PdfReader
from pypdf.errors import DependencyError, PyPdfError

from specprefill_cli.documents.cleaning import clean_characters, collapse_blank_lines
from specprefill_cli.documents.errors import document_error
from specprefill_cli.documents.paragraphs import join_lines
from specprefill_cli.documents.reader import Limits

T = TypeVar("T")

# pypdf says of itself that "broken PDF files might cause other Exceptions": an object of the wrong type where the
# standard promises another (TypeError, AttributeError, KeyError, IndexError: LookupError), numbers and strings that
# are none (ValueError, ArithmeticError, struct.error), broken streams (zlib.error, EOFError, OSError), loops between
# objects (RecursionError, a RuntimeError as NotImplementedError is), sizes from the file (MemoryError).
PARSER_ERRORS: tuple[type[Exception], ...] = (
    PyPdfError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    StopIteration,
    TypeError,
    ValueError,
    struct.error,
    zlib.error,
)

_REASON_CHARACTERS = 160


@dataclass
class Extraction:
    """What has been read so far; filled page by page, so that it also tells how far a late parse came."""

    page_count: int = 0
    texts: list[str] = field(default_factory=list)  # cleaned, one a page; empty for a page without text
    damaged: list[int] = field(default_factory=list)  # numbers of the pages that could not be parsed
    reason: str = ""  # the parser's words about the first damaged page


class _Damaged(Exception):
    """The parser failed; the message is its reason."""


class _Abandoned(Exception):
    """Nobody waits for the result any more."""


def extract_pages(data: bytes, name: str, limits: Limits, found: Extraction, stop: threading.Event) -> None:
    """Read the text of every page of ``data`` into ``found``; ends early once ``stop`` is set.

    A damaged page among readable ones is noted, not fatal. Raises DocumentError: password needed, damaged as a
    whole, more pages or characters than ``limits`` allow.
    """
    try:
        reader, found.page_count = _parsed(lambda: _open(data, name))
    except _Damaged as error:
        raise _damaged_file(data, name, str(error)) from error
    if found.page_count > limits.max_pages:
        what = f"{found.page_count:,} pages, the limit is {limits.max_pages:,}"
        raise document_error(name, what, "split it (for example: qpdf --split-pages=1000)")
    characters = 0
    for index in range(found.page_count):
        try:
            text = clean_page(_parsed(lambda index=index: _page_text(reader, index, stop)))
        except _Abandoned:
            return
        except _Damaged as error:
            found.damaged.append(index + 1)
            found.reason = found.reason or str(error)
            text = ""
        characters += len(text)
        if characters > limits.max_characters:
            what = f"more than {limits.max_characters:,} characters of text (reached on page {index + 1})"
            raise document_error(name, what, "split it into smaller files")
        found.texts.append(text)


def clean_page(text: str) -> str:
    """The text of one PDF page with clean characters and whole paragraphs."""
    return collapse_blank_lines(join_lines(clean_characters(text))).strip()


@contextmanager
def quiet_pypdf() -> Iterator[list[str]]:
    """Keeps pypdf's log and Python's warnings from the terminal while it lasts; yields pypdf's complaints.

    Complaints are collected because pypdf repairs damage silently otherwise: a page may lose text without an
    exception. Not for several threads at once: logging and warnings are global while it lasts.
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


def _parsed(parse: Callable[[], T]) -> T:
    """``parse()``: the one place where what a damaged PDF makes pypdf raise becomes one exception."""
    try:
        return parse()
    except PARSER_ERRORS as error:
        raise _Damaged((str(error) or type(error).__name__)[:_REASON_CHARACTERS]) from error


def _open(data: bytes, name: str) -> tuple[PdfReader, int]:
    try:
        reader = PdfReader(BytesIO(data))
        # Many PDFs are encrypted with an empty password, only to restrict printing: those open for everyone.
        if reader.is_encrypted and not reader.decrypt(""):
            mend = "remove the password first (for example: qpdf --password=... --decrypt)"
            raise document_error(name, "the PDF is encrypted", mend)
    except DependencyError as error:
        raise document_error(name, f"the PDF is encrypted ({error})", "pip install cryptography") from error
    return reader, len(reader.pages)


def _page_text(reader: PdfReader, index: int, stop: threading.Event) -> str:
    def check(*_: object) -> None:
        if stop.is_set():
            raise _Abandoned

    check()
    return reader.pages[index].extract_text(visitor_operand_before=check)


def _damaged_file(data: bytes, name: str, reason: str) -> Exception:
    truncated = b"%%EOF" not in data[-2048:]
    what = "the PDF is truncated (its end is missing)" if truncated else f"the PDF is damaged ({reason})"
    return document_error(name, what, "fetch it again, or repair it (for example: qpdf in.pdf out.pdf)")

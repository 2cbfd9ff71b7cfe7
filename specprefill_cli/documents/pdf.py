"""PDF: pages of text through PDFium, and clear errors for PDFs without text.

pypdf reads what PDFium does not open, and tells a password from damage. Both are imported inside functions, as that is slow.
"""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import dataclass, field
from io import BytesIO
from typing import TYPE_CHECKING

from specprefill_cli.documents import recognition
from specprefill_cli.documents.cleaning import UNDECODED, clean_characters, clean_text, restore_ligatures
from specprefill_cli.documents.document import hold, page_ranges
from specprefill_cli.documents.paragraphs import join_lines
from specprefill_cli.documents.reader import Abandoned, Pages, SourceFile, check_stop
from specprefill_cli.errors import first_line

if TYPE_CHECKING:
    from pypdf import PdfReader

OCR = "run OCR first, for example ocrmypdf"
REPAIR = "repair it (for example: qpdf in.pdf out.pdf)"


@dataclass
class Problems:
    """Numbers of pages: failed, with the reason; not decoded; with guessed ligatures; read by recognition of characters."""

    failures: dict[int, str] = field(default_factory=dict)
    undecoded: list[int] = field(default_factory=list)
    guessed: list[int] = field(default_factory=list)
    recognised: list[int] = field(default_factory=list)


def pages(file: SourceFile) -> Pages:
    """Yield the text of each page; a page without text or with text that does not decode adds a warning.

    Raises DocumentError for a PDF that needs a password, is damaged as a whole, or has too many pages or no text at all.
    """
    from pypdfium2 import PdfiumError

    from specprefill_cli.documents.pdfium import PdfiumFile, Undecoded

    try:
        pdf = PdfiumFile(file.data)
    except PdfiumError:
        yield from pypdf_pages(file)
        return
    problems = Problems()
    with closing(pdf):
        file.page_count = pdf.page_count
        check_page_count(file)
        for number in range(1, file.page_count + 1):
            text = ""
            try:
                text = pdf.page_text(number)
            except Undecoded:
                problems.undecoded.append(number)
            except PdfiumError as error:
                problems.failures[number] = first_line(error)
            if UNDECODED in text:
                problems.guessed.append(number)
            text = whole_lines(restore_ligatures(text))
            if not text and number not in problems.failures and recognition.is_installed():
                picture = pdf.picture(number, recognition.DOTS_PER_INCH)
                text = "" if picture is None else whole_lines(recognition.recognised_text(file, picture))
                problems.recognised += [number] if text else []
            if number == file.page_count:
                attached = [file.attached(*attachment) for attachment in pdf.attachments()]
                text = "\n\n".join(filter(None, [text, *attached]))
            yield text
    add_warnings(file, problems)


def whole_lines(text: str) -> str:
    """Clean the text of a page and join the lines of its paragraphs."""
    return clean_text(join_lines(clean_characters(text))).strip()


def pypdf_pages(file: SourceFile) -> Pages:
    """Yield the pages of a PDF that PDFium does not open. Raises the errors of `pages`."""
    problems = Problems()
    reader = open_pdf(file)
    for number in range(1, file.page_count + 1):
        text = ""
        try:
            text = reader.pages[number - 1].extract_text(visitor_operand_before=lambda *_: check_stop(file.stop))
        except Abandoned:
            raise
        except Exception as error:
            # pypdf raises more than PyPdfError: DependencyError (JBIG2), DeprecationError, lookup and recursion errors.
            problems.failures[number] = first_line(error)
        yield whole_lines(text)
    add_warnings(file, problems)


def open_pdf(file: SourceFile) -> PdfReader:
    """Open a PDF and count its pages.

    Raises DocumentError if it is encrypted or damaged, has more pages than the limits allow, or a package is missing.
    """
    from pypdf import PdfReader

    # It reports each repaired damage.
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    try:
        reader = PdfReader(BytesIO(file.data))
        # Many PDFs are encrypted with an empty password, only to restrict printing: anyone can open them.
        locked = reader.is_encrypted and not reader.decrypt("")
        file.page_count = 0 if locked else len(reader.pages)
    except Exception as error:
        raise file.error(f"the PDF is damaged ({first_line(error)})", f"fetch it again, or {REPAIR}") from error
    if locked:
        remedy = "remove the password first (for example: qpdf --password=... --decrypt)"
        raise file.error("the PDF is encrypted", remedy)
    check_page_count(file)
    return reader


def check_page_count(file: SourceFile) -> None:
    """Raise DocumentError for more pages than the limits allow."""
    if file.page_count > file.limits.max_pages:
        cause = f"{file.page_count:,} pages, the limit is {file.limits.max_pages:,}"
        raise file.error(cause, "split it (for example: qpdf --split-pages=1000)")


def add_warnings(file: SourceFile, problems: Problems) -> None:
    """Warn of pages that could not be read, whose text does not decode or was recognised, and of pages without text.

    Raises DocumentError if no page has text.
    """
    failures, undecoded = problems.failures, problems.undecoded
    known = {*failures, *undecoded}
    empty = [number for number, text in enumerate(file.texts, start=1) if not text and number not in known]
    install = "" if recognition.is_installed() else f", or install recognition of characters: {recognition.INSTALL}"
    causes = []
    if failures:
        causes.append((f"{page_ranges(failures)} could not be read ({next(iter(failures.values()))})", REPAIR))
    if left := [number for number in undecoded if number not in problems.recognised]:
        causes.append((f"{hold(left)} text whose characters have no letters in the file", OCR + install))
    if empty:
        causes.append((f"{hold(empty)} no text (scanned?)", OCR + install))
    if causes and not any(file.texts):
        raise file.error(*causes[0])
    if problems.guessed:
        causes.append(
            (f"characters of {page_ranges(problems.guessed)} do not decode, ligatures are guessed", OCR + install)
        )
    if problems.recognised:
        causes.append(
            (f"the text of {page_ranges(problems.recognised)} was recognised in pictures", "check numbers and names")
        )
    file.warnings += [f"{cause}; {remedy}" for cause, remedy in causes]

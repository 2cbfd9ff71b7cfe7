"""PDF: pages of text through PDFium, and clear errors for PDFs without text.

pypdf reads what PDFium does not open, and tells a password from damage. Both are imported inside functions, as that is slow.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from io import BytesIO
from typing import TYPE_CHECKING

from specprefill_cli.documents.cleaning import UNDECODED, clean_characters, clean_text, restore_ligatures
from specprefill_cli.documents.document import page_ranges
from specprefill_cli.documents.paragraphs import join_lines
from specprefill_cli.documents.reader import Abandoned, Pages, SourceFile, check_stop
from specprefill_cli.errors import first_line

if TYPE_CHECKING:
    from pypdf import PdfReader

OCR = "run OCR first, for example ocrmypdf"
REPAIR = "repair it (for example: qpdf in.pdf out.pdf)"


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
    failures: dict[int, str] = {}
    undecoded: list[int] = []
    guessed: list[int] = []
    with closing(pdf):
        file.page_count = pdf.page_count
        check_page_count(file)
        for number in range(1, file.page_count + 1):
            text = ""
            try:
                text = pdf.page_text(number)
            except Undecoded:
                undecoded.append(number)
            except PdfiumError as error:
                failures[number] = first_line(error)
            if UNDECODED in text:
                guessed.append(number)
            text = whole_lines(restore_ligatures(text))
            if number == file.page_count:
                text = "\n\n".join(
                    filter(None, [text, *(file.attached(*attachment) for attachment in pdf.attachments())])
                )
            yield text
    if guessed:
        file.warnings.append(
            f"characters of {page_ranges(guessed)} do not decode: ligatures are guessed, others left out; {OCR}"
        )
    add_warnings(file, failures, undecoded)


def whole_lines(text: str) -> str:
    """Clean the text of a page and join the lines of its paragraphs."""
    return clean_text(join_lines(clean_characters(text))).strip()


def pypdf_pages(file: SourceFile) -> Pages:
    """Yield the pages of a PDF that PDFium does not open. Raises the errors of `pages`."""
    failures: dict[int, str] = {}
    reader = open_pdf(file)
    for number in range(1, file.page_count + 1):
        text = ""
        try:
            text = reader.pages[number - 1].extract_text(visitor_operand_before=lambda *_: check_stop(file.stop))
        except Abandoned:
            raise
        except Exception as error:
            # pypdf raises more than PyPdfError: DependencyError (JBIG2), DeprecationError, lookup and recursion errors.
            failures[number] = first_line(error)
        yield whole_lines(text)
    add_warnings(file, failures, [])


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


def add_warnings(file: SourceFile, failures: Mapping[int, str], undecoded: Sequence[int]) -> None:
    """Warn of pages that could not be read, pages whose text does not decode, and pages without text.

    failures: reason by page number

    Raises DocumentError if no page has text.
    """
    problems = []
    if failures:
        problems.append((f"{page_ranges(failures)} could not be read ({next(iter(failures.values()))})", REPAIR))
    if undecoded:
        verb = "holds" if len(undecoded) == 1 else "hold"
        problems.append((f"{page_ranges(undecoded)} {verb} text whose characters have no letters in the file", OCR))
    known = {*failures, *undecoded}
    empty_pages = [number for number, text in enumerate(file.texts, start=1) if not text and number not in known]
    if empty_pages:
        verb = "holds" if len(empty_pages) == 1 else "hold"
        problems.append((f"{page_ranges(empty_pages)} {verb} no text (scanned?)", OCR))
    if problems and not any(file.texts):
        raise file.error(*problems[0])
    file.warnings += [f"{cause}; {remedy}" for cause, remedy in problems]

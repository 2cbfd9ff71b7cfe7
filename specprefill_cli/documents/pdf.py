"""PDF: pages of text through PDFium, and clear errors for PDFs without text.

pypdf reads what PDFium does not open, and tells a password from damage. Both are imported inside functions, as that is slow.
"""

import logging
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from io import BytesIO

from specprefill_cli.documents import extras
from specprefill_cli.documents.cleaning import UNDECODED, clean_characters, clean_text, join_lines, restore_ligatures
from specprefill_cli.documents.document import hold, page_ranges
from specprefill_cli.documents.reader import Pages, SourceFile
from specprefill_cli.errors import DocumentError, first_line

DOTS_PER_INCH = 150
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

    Raises DocumentError for a PDF that needs a password, is damaged as a whole, or has no text at all.
    """
    from pypdfium2 import PdfiumError

    from specprefill_cli.documents import pdfium

    problems = Problems()
    with ExitStack() as stack:
        try:
            document = stack.enter_context(pdfium.opened(file.data))
        except PdfiumError:
            yield from pypdf_pages(file, problems)
            document = ()
        file.page_count = file.page_count or len(document)
        for index in range(len(document)):
            text, picture = "", None
            try:
                with pdfium.LOCK, closing(document[index]) as page:
                    text = pdfium.page_text(page)
                    is_unread = not text.replace(UNDECODED, "").strip()
                    if is_unread and extras.can_recognise() and any(page.get_objects(max_depth=1)):
                        picture = page.render(scale=DOTS_PER_INCH / 72).to_numpy().copy()
            except PdfiumError as error:
                problems.failures[index + 1] = first_line(error)
            if UNDECODED in text:
                (problems.undecoded if text == UNDECODED else problems.guessed).append(index + 1)
            text = whole_lines(restore_ligatures(text))
            if picture is not None and (text := whole_lines(extras.recognised_text(file, picture))):
                problems.recognised.append(index + 1)
            attached = pdfium.attachments(document) if index + 1 == file.page_count else []
            yield "\n\n".join(filter(None, [text, *(file.attached(*attachment) for attachment in attached)]))
    add_warnings(file, problems)


def whole_lines(text: str) -> str:
    """Clean the text of a page and join the lines of its paragraphs."""
    return clean_text(join_lines(clean_characters(text))).strip()


def pypdf_pages(file: SourceFile, problems: Problems) -> Pages:
    """Yield the pages of a PDF that PDFium does not open. Raises DocumentError if it is encrypted or damaged."""
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
        raise file.error(
            "the PDF is encrypted", "remove the password first (for example: qpdf --password=... --decrypt)"
        )
    for number in range(1, file.page_count + 1):
        text = ""
        try:
            text = reader.pages[number - 1].extract_text(visitor_operand_before=lambda *_: file.check_room())
        except DocumentError:
            raise
        except Exception as error:
            # pypdf raises more than PyPdfError: DependencyError (JBIG2), DeprecationError, lookup and recursion errors.
            problems.failures[number] = first_line(error)
        yield whole_lines(text)


def add_warnings(file: SourceFile, problems: Problems) -> None:
    """Warn of pages that could not be read, whose text does not decode or was recognised, and of pages without text.

    Raises DocumentError if no page has text.
    """
    known = {*problems.failures, *problems.undecoded}
    empty = [number for number, text in enumerate(file.texts, start=1) if not text and number not in known]
    ocr = OCR if extras.can_recognise() else f"{OCR}, or install recognition of characters: {extras.INSTALL}"
    causes = []
    if problems.failures:
        reason = next(iter(problems.failures.values()))
        causes.append(f"{page_ranges(problems.failures)} could not be read ({reason}); {REPAIR}")
    if left := [number for number in problems.undecoded if number not in problems.recognised]:
        causes.append(f"{hold(left)} text whose characters have no letters in the file; {ocr}")
    if empty:
        causes.append(f"{hold(empty)} no text (scanned?); {ocr}")
    if causes and not any(file.texts):
        raise file.error(*causes[0].rsplit("; ", 1))
    if problems.guessed:
        causes.append(f"characters of {page_ranges(problems.guessed)} do not decode, ligatures are guessed; {ocr}")
    if problems.recognised:
        read = page_ranges(problems.recognised)
        causes.append(f"the text of {read} was recognised in pictures; check numbers and names")
    file.warnings += causes

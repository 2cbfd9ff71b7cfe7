"""PDF: pages of text through PDFium, and clear errors for PDFs without text."""

from contextlib import closing
from dataclasses import dataclass, field

from specprefill_cli.documents import recognition
from specprefill_cli.documents.cleaning import UNDECODED, clean_characters, clean_text, restore_ligatures
from specprefill_cli.documents.document import hold, page_ranges
from specprefill_cli.documents.paragraphs import join_lines
from specprefill_cli.documents.reader import Pages, SourceFile
from specprefill_cli.errors import first_line

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
    # PDFium is slow to import.
    from pypdfium2 import PdfiumError

    from specprefill_cli.documents.pdfium import PASSWORD, PdfiumFile, Undecoded

    try:
        pdf = PdfiumFile(file.data)
    except PdfiumError as error:
        if error.err_code == PASSWORD:
            remedy = "remove the password first (for example: qpdf --password=... --decrypt)"
            raise file.error("the PDF is encrypted", remedy) from error
        raise file.error(f"the PDF is damaged ({first_line(error)})", f"fetch it again, or {REPAIR}") from error
    problems = Problems()
    with closing(pdf):
        file.page_count = pdf.page_count
        if file.page_count > file.limits.max_pages:
            cause = f"{file.page_count:,} pages, the limit is {file.limits.max_pages:,}"
            raise file.error(cause, "split it (for example: qpdf --split-pages=1000)")
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
        guessed = f"characters of {page_ranges(problems.guessed)} do not decode, ligatures are guessed"
        causes.append((guessed, OCR + install))
    if problems.recognised:
        recognised = f"the text of {page_ranges(problems.recognised)} was recognised in pictures"
        causes.append((recognised, "check numbers and names"))
    file.warnings += [f"{cause}; {remedy}" for cause, remedy in causes]

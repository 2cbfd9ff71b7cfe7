"""PDF: pages of text through PDFium, or through pypdf, which tells a password from damage."""

import logging
from collections import defaultdict
from contextlib import ExitStack, closing
from io import BytesIO

from specprefill_cli.documents import extras
from specprefill_cli.documents.cleaning import UNDECODED, clean_characters, clean_text, join_lines, restore_ligatures
from specprefill_cli.documents.document import page_ranges
from specprefill_cli.documents.reader import Pages, SourceFile
from specprefill_cli.errors import first_line

DOTS_PER_INCH = 150
# A picture of a page may have a line of text: a stamp, or the page's number.
STAMP_CHARACTERS = 150
OCR = "run OCR first, for example ocrmypdf"
REPAIR = "repair it (for example: qpdf in.pdf out.pdf)"
UNLOCK = "remove the password first (for example: qpdf --password=... --decrypt)"


def pages(file: SourceFile) -> Pages:
    """Yield the text of each page. Raises DocumentError for a file with a password, damage or no text."""
    from pypdfium2 import PdfDocument, PdfiumError, raw

    from specprefill_cli.documents import pdfium

    # Both log all damage that they repair.
    for package in ("pypdf", "pypdfium2"):
        logging.getLogger(package).setLevel(logging.CRITICAL)
    failures: dict[int, str] = {}
    problems: defaultdict[str, list[int]] = defaultdict(list)
    missing = ""
    with pdfium.LOCK, ExitStack() as stack:
        try:
            document = stack.enter_context(closing(PdfDocument(file.data)))
            document.init_forms()
            if document.get_formtype() == raw.FORMTYPE_XFA_FULL:
                file.warnings.append("its form (XFA) is not in its pages; print it to a PDF with Adobe Reader")
        except PdfiumError:
            yield from pypdf_pages(file, failures)
            document = ()
        file.page_count = file.page_count or len(document)
        for index in range(len(document)):
            text, picture, attached = "", None, list[tuple[str, bytes]]()
            try:
                with closing(document[index]) as page:
                    text = pdfium.page_text(page)
                    attached += pdfium.attachments(document, page)
                    is_stamp = 0 < len(text) < STAMP_CHARACTERS and pdfium.is_scan(page)
                    problems["scanned"] += [index + 1] * (is_stamp and not extras.can_recognise())
                    is_unread = is_stamp or not text.replace(UNDECODED, "").strip()
                    if is_unread and extras.can_recognise() and any(page.get_objects(max_depth=1)):
                        picture = page.render(scale=DOTS_PER_INCH / 72).to_numpy().copy()
                if UNDECODED in text:
                    problems["undecoded" if text == UNDECODED else "guessed"].append(index + 1)
                text = whole_lines(restore_ligatures(text))
                recognised = "" if picture is None else whole_lines(extras.recognised_text(picture))
                # A slide over a picture may have more text of its own.
                if len(recognised) > len(text):
                    text = recognised
                    problems["recognised"].append(index + 1)
            except PdfiumError as error:
                failures[index + 1] = first_line(error)
            except ImportError as error:
                # A library of the system.
                missing = first_line(error)
                problems["scanned"] += [index + 1] * bool(text)
            attached += pdfium.attachments(document) if index + 1 == file.page_count else []
            yield "\n\n".join(filter(None, [text, *(file.attached(*attachment) for attachment in attached)]))
    add_warnings(file, failures, problems, missing)


def whole_lines(text: str) -> str:
    """Clean the text of a page and join the lines of its paragraphs."""
    return clean_text(join_lines(clean_characters(text))).strip()


def pypdf_pages(file: SourceFile, failures: dict[int, str]) -> Pages:
    """Yield the pages of a PDF that PDFium does not open. Raises DocumentError if it is encrypted or damaged."""
    from pypdf import PdfReader

    try:
        reader = PdfReader(BytesIO(file.data))
        # Many PDFs are encrypted with an empty password, only to restrict printing: anyone can open them.
        locked = reader.is_encrypted and not reader.decrypt("")
        file.page_count = 0 if locked else len(reader.pages)
    except Exception as error:
        raise file.error(f"the PDF is damaged ({first_line(error)})", f"fetch it again, or {REPAIR}") from error
    if locked:
        raise file.error("the PDF is encrypted", UNLOCK)
    for number in range(1, file.page_count + 1):
        text = ""
        try:
            text = reader.pages[number - 1].extract_text()
        except Exception as error:
            # pypdf raises more than PyPdfError: DependencyError (JBIG2), DeprecationError, lookup and recursion errors.
            failures[number] = first_line(error)
        yield whole_lines(text)


def add_warnings(
    file: SourceFile, failures: dict[int, str], problems: defaultdict[str, list[int]], missing: str
) -> None:
    """Warn of pages without text, and with problems by kind. missing: why no page was recognised.

    Raises DocumentError if no page has text.
    """
    known = {*failures, *problems["undecoded"], *problems["recognised"]}
    scanned = {*problems["scanned"]} - known
    empty = [
        number for number, text in enumerate(file.texts, start=1) if number in scanned or not (text or number in known)
    ]
    ocr = OCR if extras.can_recognise() else f"{OCR}, or install recognition of characters: {extras.INSTALL}"
    ocr += f" (recognition of characters failed: {missing})" if missing else ""
    unread = f"{page_ranges(failures)} could not be read ({next(iter(failures.values()), '')}); {REPAIR}"
    causes = [unread] if failures else []
    if left := [number for number in problems["undecoded"] if number not in problems["recognised"]]:
        causes.append(f"the characters of {page_ranges(left)} have no letters in the file; {ocr}")
    causes += [f"{'hardly any' if scanned else 'no'} text on {page_ranges(empty)} (scanned?); {ocr}"] if empty else []
    if causes and not any(file.texts):
        raise file.error(*causes[0].rsplit("; ", 1))
    if guessed := problems["guessed"]:
        causes.append(f"characters of {page_ranges(guessed)} do not decode, ligatures are guessed; {ocr}")
    if recognised := problems["recognised"]:
        causes.append(f"the text of {page_ranges(recognised)} was recognised in pictures; check numbers and names")
    file.warnings += causes

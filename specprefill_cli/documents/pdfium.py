"""Pages of a PDF through PDFium: text, form fields, notes and attachments."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pypdfium2
import pypdfium2.raw as pdfium

from specprefill_cli.documents import layout
from specprefill_cli.documents.cleaning import UNDECODED
from specprefill_cli.documents.grids import grids_of
from specprefill_cli.documents.pieces import Box

# PDFium is not thread-safe.
LOCK = threading.Lock()
# Characters of a page that are checked, and the share of undecoded ones that makes the page unreadable.
CHECKED_CHARACTERS, UNDECODED_SHARE = 64, 0.3
MEANINGLESS = re.compile(r"[\x00-\x08\x0e-\x1f\ue000-\uf8ff]")
HIDDEN = pdfium.FPDF_ANNOT_FLAG_HIDDEN | pdfium.FPDF_ANNOT_FLAG_NOVIEW
TICKED = {pdfium.FPDF_FORMFIELD_CHECKBOX, pdfium.FPDF_FORMFIELD_RADIOBUTTON}
WRITTEN = {pdfium.FPDF_FORMFIELD_TEXTFIELD, pdfium.FPDF_FORMFIELD_COMBOBOX, pdfium.FPDF_FORMFIELD_LISTBOX}
Note = tuple[str, str, Box]


class Undecoded(Exception):
    """Raised for a page whose characters have no text: the font does not say which letters they are."""


class PdfiumFile:
    """An open PDF. Raises PdfiumError for a file that PDFium does not open."""

    def __init__(self, data: bytes) -> None:
        with LOCK:
            self.document = pypdfium2.PdfDocument(data)
            self.document.init_forms()
            self.page_count = len(self.document)

    def close(self) -> None:
        with LOCK:
            self.document.close()

    def page_text(self, number: int) -> str:
        """The text of a page, from 1 on. Raises PdfiumError, and Undecoded for a page whose text means nothing."""
        with LOCK:
            page = self.document[number - 1]
            try:
                return page_text(page)
            finally:
                page.close()

    def picture(self, number: int, dots_per_inch: int) -> Any:
        """A picture of a page as an array of its pixels; None for an empty page."""
        with LOCK:
            page = self.document[number - 1]
            try:
                is_empty = pdfium.FPDFPage_CountObjects(page.raw) < 1
                return None if is_empty else page.render(scale=dots_per_inch / 72).to_numpy().copy()
            finally:
                page.close()

    def attachments(self) -> list[tuple[str, bytes]]:
        """The name and the content of each attached file."""
        with LOCK:
            files = [self.document.get_attachment(index) for index in range(self.document.count_attachments())]
            return [(file.get_name(), attached_bytes(file)) for file in files]


def attached_bytes(file: pypdfium2.PdfAttachment) -> bytes:
    """The content of an attached file; empty where it is missing."""
    try:
        return bytes(file.get_data())
    except pypdfium2.PdfiumError:
        return b""


def page_text(page: pypdfium2.PdfPage) -> str:
    """The text of a page in reading order, with the values of its fields and its notes."""
    text_page = page.get_textpage()
    try:
        text: str = text_page.get_text_range()
        # The mark makes the reader warn of the page.
        mark = UNDECODED if undecoded_share(text_page, text) else ""
        boxes = [Box(*text_page.get_rect(index)) for index in range(text_page.count_rects())]
        notes = list(notes_of(page))
        grids = grids_of(page)
        is_simple = not (notes or grids) and layout.is_simple(boxes)
        ordered = None if is_simple else layout.ordered_text(text_page, notes, grids)
        if ordered is None:
            ordered = "\n".join([with_hyphens(text_page, text), *(note for note, _, _ in notes)])
    finally:
        text_page.close()
    return ordered + mark


def undecoded_share(page: pypdfium2.PdfTextPage, text: str) -> float:
    """The share of a page's characters that are codes without a letter, in a sample.

    Raises Undecoded if they are too many, those of private use and control characters included: a few may be bullets.
    """
    count = page.count_chars()
    checked = range(0, count, max(1, count // CHECKED_CHARACTERS))
    unmapped = sum(pdfium.FPDFText_HasUnicodeMapError(page.raw, index) == 1 for index in checked) / max(len(checked), 1)
    if unmapped + len(MEANINGLESS.findall(text)) / max(len(text), 1) > UNDECODED_SHARE:
        raise Undecoded
    return unmapped


def with_hyphens(page: pypdfium2.PdfTextPage, text: str) -> str:
    """Tell hyphens at line ends from undecoded characters: PDFium writes the same character for both."""
    if UNDECODED not in text:
        return text
    codes = (pdfium.FPDFText_GetUnicode(page.raw, index) for index in range(page.count_chars()))
    marks = iter(["-\n" if code else UNDECODED for code in codes if code in (0, layout.LINE_HYPHEN)])
    pieces = text.split(UNDECODED)
    return "".join(piece + next(marks, UNDECODED) for piece in pieces[:-1]) + pieces[-1]


def notes_of(page: pypdfium2.PdfPage) -> Iterator[Note]:
    """Yield the text, the name and the box of each visible field and note of a page."""
    for index in range(pdfium.FPDFPage_GetAnnotCount(page.raw)):
        annotation = pdfium.FPDFPage_GetAnnot(page.raw, index)
        try:
            kind = pdfium.FPDFAnnot_GetSubtype(annotation)
            if pdfium.FPDFAnnot_GetFlags(annotation) & HIDDEN or kind in (
                pdfium.FPDF_ANNOT_LINK,
                pdfium.FPDF_ANNOT_POPUP,
            ):
                continue
            is_field = kind == pdfium.FPDF_ANNOT_WIDGET
            name, text = (
                field(page, annotation)
                if is_field
                else ("", string(pdfium.FPDFAnnot_GetStringValue, annotation, b"Contents"))
            )
            if text.strip():
                box = pdfium.FS_RECTF()
                pdfium.FPDFAnnot_GetRect(annotation, ctypes.byref(box))
                yield " ".join(text.split()), name, Box(box.left, box.bottom, box.right, box.top)
        finally:
            pdfium.FPDFPage_CloseAnnot(annotation)


def field(page: pypdfium2.PdfPage, annotation: Any) -> tuple[str, str]:
    """The name and the value of a form's field: `[x]` for a ticked box."""
    if page.formenv is None:
        return "", ""
    form = page.formenv.raw
    kind = pdfium.FPDFAnnot_GetFormFieldType(form, annotation)
    name = string(pdfium.FPDFAnnot_GetFormFieldAlternateName, form, annotation)
    name = name or string(pdfium.FPDFAnnot_GetFormFieldName, form, annotation)
    if kind in TICKED:
        return name, "[x]" if pdfium.FPDFAnnot_IsChecked(form, annotation) else "[ ]"
    return name, string(pdfium.FPDFAnnot_GetFormFieldValue, form, annotation) if kind in WRITTEN else ""


def string(read: Callable[..., int], *arguments: Any) -> str:
    """A string that PDFium writes in UTF-16 into a buffer of the length that it asks for."""
    size = read(*arguments, None, 0)
    buffer = ctypes.create_string_buffer(size)
    read(*arguments, ctypes.cast(buffer, ctypes.POINTER(pdfium.FPDF_WCHAR)), size)
    return buffer.raw[: max(0, size - 2)].decode("utf-16-le", "replace")

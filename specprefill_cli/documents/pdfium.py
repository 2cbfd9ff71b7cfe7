"""Pages of a PDF through PDFium: text, form fields, notes and attachments."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import pypdfium2
import pypdfium2.raw as pdfium

from specprefill_cli.documents import layout
from specprefill_cli.documents.cleaning import UNDECODED
from specprefill_cli.documents.grids import grids_of
from specprefill_cli.documents.layout import Box

# PDFium is not thread-safe.
LOCK = threading.Lock()
# Characters of a page that are checked, and the share of undecoded ones that makes the page unreadable.
CHECKED_CHARACTERS, UNDECODED_SHARE = 64, 0.3
MEANINGLESS = re.compile(r"[\x00-\x08\x0e-\x1f\ue000-\uf8ff]")
HIDDEN = pdfium.FPDF_ANNOT_FLAG_HIDDEN | pdfium.FPDF_ANNOT_FLAG_NOVIEW
UNREAD = (pdfium.FPDF_ANNOT_LINK, pdfium.FPDF_ANNOT_POPUP)
TICKED = {pdfium.FPDF_FORMFIELD_CHECKBOX, pdfium.FPDF_FORMFIELD_RADIOBUTTON}
WRITTEN = {pdfium.FPDF_FORMFIELD_TEXTFIELD, pdfium.FPDF_FORMFIELD_COMBOBOX, pdfium.FPDF_FORMFIELD_LISTBOX}
Note = tuple[str, str, Box]


@contextmanager
def opened(data: bytes) -> Iterator[pypdfium2.PdfDocument]:
    """Open a PDF with its forms, and close it. Raises PdfiumError for a file that PDFium does not open."""
    with LOCK:
        document = pypdfium2.PdfDocument(data)
        document.init_forms()
    try:
        yield document
    finally:
        with LOCK:
            document.close()


def attachments(document: pypdfium2.PdfDocument) -> list[tuple[str, bytes]]:
    """The name and the content of each attached file; files whose content is missing are empty."""
    found = []
    with LOCK:
        for file in map(document.get_attachment, range(document.count_attachments())):
            with suppress(pypdfium2.PdfiumError):
                found.append((file.get_name(), bytes(file.get_data())))
    return found


def page_text(page: pypdfium2.PdfPage) -> str:
    """The text of a page in reading order, with the values of its fields and its notes.

    It ends with `UNDECODED` where characters have no letters, and is nothing else if they are too many.
    """
    with closing(page.get_textpage()) as text_page:
        text: str = text_page.get_text_range()
        # The share of codes without a letter in a sample, and of those that mean nothing: a few may be bullets.
        count = text_page.count_chars()
        sample = range(0, count, max(1, count // CHECKED_CHARACTERS))
        unmapped = sum(pdfium.FPDFText_HasUnicodeMapError(text_page.raw, index) == 1 for index in sample)
        share = unmapped / max(len(sample), 1)
        if share + len(MEANINGLESS.findall(text)) / max(len(text), 1) > UNDECODED_SHARE:
            return UNDECODED
        boxes = [Box(*text_page.get_rect(index)) for index in range(text_page.count_rects())]
        notes, grids = list(notes_of(page)), grids_of(page)
        is_simple = not (notes or grids) and layout.is_simple(boxes)
        ordered = None if is_simple else layout.ordered_text(text_page, notes, grids)
        if ordered is None:
            ordered = "\n".join([with_hyphens(text_page, text), *(note for note, _, _ in notes)])
    return ordered + UNDECODED * bool(unmapped)


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
            if pdfium.FPDFAnnot_GetFlags(annotation) & HIDDEN or kind in UNREAD:
                continue
            if kind == pdfium.FPDF_ANNOT_WIDGET:
                name, text = field(page, annotation)
            else:
                name, text = "", string(pdfium.FPDFAnnot_GetStringValue, annotation, b"Contents")
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

"""Pages of a PDF through PDFium: text, fields, notes, attachments, and tables that are drawn with lines."""

import ctypes
import math
import re
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import accumulate, islice, pairwise
from typing import Any

import pypdfium2
import pypdfium2.raw as pdfium

from specprefill_cli.documents import layout
from specprefill_cli.documents.cleaning import UNDECODED
from specprefill_cli.documents.pieces import MARK_GAP, Box, Character, Grid, Note

# PDFium is not thread-safe: one document at a time, with those attached to it.
LOCK = threading.RLock()
# Characters of a page that are checked, and the share of undecoded ones that makes the page unreadable.
CHECKED_CHARACTERS, UNDECODED_SHARE = 64, 0.3
# The share of a page that a picture of it covers.
SCANNED_SHARE = 0.8
MEANINGLESS = re.compile(r"[\x00-\x08\x0e-\x1f\ue000-\uf8ff]")
# PDFium writes a hyphen that divides a word at a line end as this character, and in the text of a page as undecoded.
LINE_HYPHEN = 2
LAM, ALEFS = "\u0644", "\u0622\u0623\u0625\u0627"
HIDDEN = pdfium.FPDF_ANNOT_FLAG_HIDDEN | pdfium.FPDF_ANNOT_FLAG_NOVIEW
UNREAD = (pdfium.FPDF_ANNOT_LINK, pdfium.FPDF_ANNOT_POPUP)
TICKED = {pdfium.FPDF_FORMFIELD_CHECKBOX, pdfium.FPDF_FORMFIELD_RADIOBUTTON}
WRITTEN = {pdfium.FPDF_FORMFIELD_TEXTFIELD, pdfium.FPDF_FORMFIELD_COMBOBOX, pdfium.FPDF_FORMFIELD_LISTBOX}
Point = tuple[float, float]
# How far letters reach below and above their line, as shares of the font's size.
DESCENT, ASCENT = 0.25, 0.9
# In points: the shortest line of a table, and how far two lines at one place may be apart.
SHORTEST, SAME_PLACE = 8.0, 3.0
# A page with more drawings is a picture, not a table.
MOST_DRAWINGS, MOST_STROKES = 3000, 20_000


def attachments(document: pypdfium2.PdfDocument, page: pypdfium2.PdfPage | None = None) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each file attached to a document, or to a page; without those that are missing."""
    handles = map(pdfium.FPDFAnnot_GetFileAttachment, annotations(page) if page else ())
    files = [pypdfium2.PdfAttachment(handle, document) for handle in handles if handle]
    files += map(document.get_attachment, range(0 if page else document.count_attachments()))
    for file in files:
        with suppress(pypdfium2.PdfiumError):
            yield file.get_name(), bytes(file.get_data())


def page_text(page: pypdfium2.PdfPage) -> str:
    """The text of a page in reading order; `UNDECODED` at its end, or alone: some or most has no letters."""
    with closing(page.get_textpage()) as text_page:
        text: str = text_page.get_text_range()
        # The share of codes without a letter in a sample, and of those that mean nothing: a few may be bullets.
        count = text_page.count_chars()
        sample = range(0, count, max(1, count // CHECKED_CHARACTERS))
        unmapped = sum(pdfium.FPDFText_HasUnicodeMapError(text_page.raw, index) == 1 for index in sample)
        share = unmapped / max(len(sample), 1)
        if max(share, len(MEANINGLESS.findall(text)) / max(len(text), 1)) > UNDECODED_SHARE:
            return UNDECODED
        turns = pdfium.FPDFPage_GetRotation(page.raw)
        boxes = [turned(Box(*text_page.get_rect(index)), turns) for index in range(text_page.count_rects())]
        notes, grids = [(note, name, turned(box, turns)) for note, name, box in notes_of(page)], grids_of(page)
        is_plain = not (notes or grids) and is_simple(boxes)
        ordered = None if is_plain else layout.ordered_text(characters(text_page, turns=turns), notes, grids)
        if ordered is None:
            if UNDECODED in text or LAM in text:
                text = "".join(character for character, _, _ in characters(text_page, "-\n"))
            ordered = "\n".join([text, *(note for note, _, _ in notes)])
    return ordered + f"\n{UNDECODED}" * bool(unmapped)


def is_scan(page: pypdfium2.PdfPage) -> bool:
    """Whether a picture covers most of a page."""
    boxes = (picture.get_bounds() for picture in page.get_objects(filter=[pdfium.FPDF_PAGEOBJ_IMAGE], max_depth=2))
    area = SCANNED_SHARE * page.get_width() * page.get_height()
    return any((right - left) * (top - bottom) > area for left, bottom, right, top in boxes)


def is_simple(boxes: Sequence[Box]) -> bool:
    """Whether a page has neither raised text nor columns beside each other, by the boxes of its texts in drawing order."""
    gaps = 0
    for first, second in pairwise(boxes):
        height, gap = first.top - first.bottom, second.left - first.right
        # PDFium joins letters that stand below each other.
        if 0 < first.bottom - second.top < 2 * height > 2.5 * max(first.right - first.left, second.right - second.left):
            return False
        if min(first.top, second.top) - max(first.bottom, second.bottom) <= 0 or gap < -MARK_GAP * height:
            continue
        is_raised = abs(second.bottom - first.bottom) > layout.MARK_RAISE * height
        if is_raised and second.top - second.bottom < layout.MARK_HEIGHT * height and gap < height:
            return False
        gaps += gap > layout.COLUMN_GAP * height
    return gaps < layout.FEWEST_LINES


def turned(box: Box, turns: int) -> Box:
    """A box on a page that is shown turned clockwise by quarter turns."""
    for _ in range(turns):
        box = Box(box.bottom, -box.right, box.top, -box.left)
    return box


def characters(page: pypdfium2.PdfTextPage, hyphen: str = "-", turns: int = 0) -> list[Character]:
    """The characters of a page in drawing order. hyphen: for one at a line end; turns: quarter turns of the shown page."""
    box, x, y, origin = pdfium.FS_RECTF(), ctypes.c_double(), ctypes.c_double(), (0.0, 0.0)
    left, right, bottom, top = edges = [ctypes.c_double() for _ in range(4)]
    drawn, is_aslant = list[Character](), False
    for index in range(page.count_chars()):
        code = pdfium.FPDFText_GetUnicode(page.raw, index)
        pdfium.FPDFText_GetLooseCharBox(page.raw, index, ctypes.byref(box))
        pdfium.FPDFText_GetCharOrigin(page.raw, index, ctypes.byref(x), ctypes.byref(y))
        character = hyphen if code == LINE_HYPHEN else chr(code) if code else UNDECODED
        place, base = Box(box.left, box.bottom, box.right, box.top), y.value
        if turns:
            # The loose box is that of upright text.
            pdfium.FPDFText_GetCharBox(page.raw, index, *edges)
            place = turned(Box(left.value, bottom.value, right.value, top.value), turns)
            base = turned(Box(x.value, y.value, x.value, y.value), turns).bottom
            size = pdfium.FPDFText_GetFontSize(page.raw, index)
            place = Box(place.left, base - DESCENT * size, place.right, base + ASCENT * size)
        # Text that stands upright or aslant beside that of the page stays together.
        slant = (pdfium.FPDFText_GetCharAngle(page.raw, index) + turns * math.pi / 2) % math.tau
        was_aslant, is_aslant = is_aslant and not character.isspace(), 0.1 < slant < math.tau - 0.1
        if is_aslant and was_aslant:
            character, place, base = drawn[-1][0] + character, *drawn.pop()[1:]
        elif is_aslant:
            place = Box(place.left, base, place.right, base + place.right - place.left)
        drawn.append((character, place, base))
        before, origin = origin, (x.value, y.value)
        # PDFium turns text that runs from right to left around, even the two letters of one glyph.
        if character == LAM and before == origin and drawn[-2][0] in ALEFS:
            drawn[-2:] = reversed(drawn[-2:])
    return drawn


def annotations(page: pypdfium2.PdfPage) -> Iterator[Any]:
    """Yield each visible annotation of a page while it is open."""
    for index in range(pdfium.FPDFPage_GetAnnotCount(page.raw)):
        annotation = pdfium.FPDFPage_GetAnnot(page.raw, index)
        try:
            if not pdfium.FPDFAnnot_GetFlags(annotation) & HIDDEN:
                yield annotation
        finally:
            pdfium.FPDFPage_CloseAnnot(annotation)


def notes_of(page: pypdfium2.PdfPage) -> Iterator[Note]:
    """Yield the text, the name and the box of each visible field and note of a page."""
    for annotation in annotations(page):
        kind, name, text = pdfium.FPDFAnnot_GetSubtype(annotation), "", ""
        if kind == pdfium.FPDF_ANNOT_WIDGET:
            name, text = field(page, annotation)
        elif kind not in UNREAD:
            text = string(pdfium.FPDFAnnot_GetStringValue, annotation, b"Contents")
            if text.strip() and kind != pdfium.FPDF_ANNOT_FREETEXT:
                text = f"[Comment: {text}]"
        if text.strip():
            box = pdfium.FS_RECTF()
            pdfium.FPDFAnnot_GetRect(annotation, ctypes.byref(box))
            yield " ".join(text.split()), name, Box(box.left, box.bottom, box.right, box.top)


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
    if kind not in WRITTEN:
        return name, ""
    options = range(pdfium.FPDFAnnot_GetOptionCount(form, annotation))
    chosen = (index for index in options if pdfium.FPDFAnnot_IsOptionSelected(form, annotation, index))
    labels = [string(pdfium.FPDFAnnot_GetOptionLabel, form, annotation, index) for index in chosen]
    return name, ", ".join(labels) or string(pdfium.FPDFAnnot_GetFormFieldValue, form, annotation)


def string(read: Callable[..., int], *arguments: Any) -> str:
    """A string that PDFium writes in UTF-16 into a buffer of the length that it asks for."""
    size = read(*arguments, None, 0)
    buffer = ctypes.create_string_buffer(size)
    read(*arguments, ctypes.cast(buffer, ctypes.POINTER(pdfium.FPDF_WCHAR)), size)
    return buffer.raw[: max(0, size - 2)].decode("utf-16-le", "replace")


def grids_of(page: pypdfium2.PdfPage) -> list[Grid]:
    """The tables of a page that are drawn with lines and have at least two columns and two rows."""
    upright, level = [], []
    turns = pdfium.FPDFPage_GetRotation(page.raw)
    for start, end in islice(strokes(page), MOST_STROKES):
        x, y, other_x, other_y = turned(Box(*start, *end), turns)
        if abs(x - other_x) < 1 and abs(y - other_y) >= SHORTEST:
            upright.append((max(y, other_y), min(y, other_y), x))
        elif abs(y - other_y) < 1 and abs(x - other_x) >= SHORTEST:
            level.append((y, min(x, other_x), max(x, other_x)))
    lines, grids = sorted(upright, reverse=True), []
    lowest = accumulate((bottom for _, bottom, _ in lines), min, initial=math.inf)
    starts = [index for index, (line, low) in enumerate(zip(lines, lowest, strict=False)) if line[0] < low - SAME_PLACE]
    for first, last in pairwise([*starts, len(lines)]):
        group = lines[first:last]
        columns = places(x for _, _, x in group)
        low, high = min(bottom for _, bottom, _ in group) - SAME_PLACE, group[0][0] + SAME_PLACE
        beside = [line for line in level if low <= line[0] <= high and line[1] < columns[-1] and line[2] > columns[0]]
        rows, ends = places(y for y, _, _ in beside), [end for line in beside for end in line[1:]]
        # A table without lines at its sides reaches as far as most of its level lines.
        sides = [min(ends, default=0.0), max(ends, default=0.0)]
        sides = [side for side in sides if 2 * sum(abs(end - side) < SAME_PLACE for end in ends) > len(rows)]
        columns = places([*columns, *sides])
        if len(columns) > 2 and len(rows) > 2:
            middles, centres = ([sum(ends) / 2 for ends in pairwise(edges)] for edges in (rows[::-1], columns))
            verticals = [{bisect_right(columns, x) - 1 for top, end, x in group if end < y < top} for y in middles]
            below = [{len(rows) - bisect_right(rows, y) for y, start, end in level if start < x < end} for x in centres]
            # A column without lines inside is none of the table's.
            whole = {*range(len(rows))}
            horizontals = [cells if len(cells & whole) > 2 else whole for cells in below]
            grids.append(Grid(columns, rows, verticals, horizontals))
    return grids


def places(values: Iterable[float]) -> list[float]:
    """Ascending places without those right behind another."""
    return [value for before, value in pairwise([-math.inf, *sorted(values)]) if value - before > SAME_PLACE]


def strokes(page: pypdfium2.PdfPage) -> Iterator[tuple[Point, Point]]:
    """Yield the ends of each straight line that a page draws."""
    if pdfium.FPDFPage_CountObjects(page.raw) > MOST_DRAWINGS:
        return
    x, y = ctypes.c_float(), ctypes.c_float()
    for drawing in page.get_objects(filter=(pdfium.FPDF_PAGEOBJ_PATH,), max_depth=1):
        matrix = drawing.get_matrix()
        start = before = (0.0, 0.0)
        for number in range(min(pdfium.FPDFPath_CountSegments(drawing.raw), MOST_DRAWINGS)):
            segment = pdfium.FPDFPath_GetPathSegment(drawing.raw, number)
            pdfium.FPDFPathSegment_GetPoint(segment, ctypes.byref(x), ctypes.byref(y))
            point = matrix.on_point(x.value, y.value)
            if pdfium.FPDFPathSegment_GetType(segment) == pdfium.FPDF_SEGMENT_MOVETO:
                start = point
            else:
                yield before, point
            if pdfium.FPDFPathSegment_GetClose(segment):
                yield point, start
            before = point

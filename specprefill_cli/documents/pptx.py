"""PPTX: the slides of a presentation as pages."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from typing import TYPE_CHECKING, Any

from specprefill_cli.documents.archives import Pages, archive_document, office_module, row_text
from specprefill_cli.documents.document import Document, page_ranges
from specprefill_cli.documents.reader import FormatReader, Limits

if TYPE_CHECKING:
    from pptx.slide import Slide


def read_pptx(data: bytes, name: str, limits: Limits) -> Document:
    """Read the text of every shape in the file's order, tables as `a | b`, then the notes; one slide a page.

    Raises DocumentError: larger than the limits, or the extra `office` is not installed.
    """
    powerpoint = office_module("pptx", name, "presentations")

    def pages(stream: BytesIO, warnings: list[str]) -> Pages:
        empty = []
        for number, slide in enumerate(powerpoint.Presentation(stream).slides, start=1):
            lines = list(slide_lines(slide))
            if not any(line.strip() for line in lines):
                empty.append(number)
            yield lines
        if empty:
            warnings.append(f"{page_ranges(empty)} {'holds' if len(empty) == 1 else 'hold'} no text (pictures?)")

    return archive_document(data, name, limits, READER.media_type, pages)


def slide_lines(slide: Slide) -> Iterator[str]:
    """Yield the lines of a slide's shapes and of the speaker's notes."""
    for shape in slide.shapes:
        yield from shape_lines(shape)
    if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
        notes = slide.notes_slide.notes_text_frame.text
        if notes.strip():
            yield f"Notes: {notes}"


def shape_lines(shape: Any) -> Iterator[str]:
    """Yield the lines of a shape; a group's are those of its shapes."""
    if getattr(shape, "has_table", False):
        for row in shape.table.rows:
            yield row_text(cell.text_frame.text for cell in row.cells)
    elif shape.has_text_frame:
        yield from (paragraph.text for paragraph in shape.text_frame.paragraphs)
    else:
        for inner in getattr(shape, "shapes", ()):
            yield from shape_lines(inner)


READER = FormatReader(
    (".pptx",), "application/vnd.openxmlformats-officedocument.presentationml.presentation", read_pptx
)

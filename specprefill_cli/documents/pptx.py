"""PPTX: the slides of a presentation as pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from specprefill_cli.documents.archives import checked_archive, office_module, row_text
from specprefill_cli.documents.document import page_ranges
from specprefill_cli.documents.reader import FormatReader, Pages, SourceFile

if TYPE_CHECKING:
    from pptx.slide import Slide


def pages(file: SourceFile) -> Pages:
    """Yield, for each slide, the text of every shape in the file's order, tables as `a | b`, then the notes."""
    powerpoint = office_module(file, "pptx", "presentations")
    empty = []
    for number, slide in enumerate(powerpoint.Presentation(checked_archive(file)).slides, start=1):
        text = file.page_text(slide_lines(slide))
        if not text.strip():
            empty.append(number)
        yield text
    if empty:
        file.warnings.append(f"{page_ranges(empty)} {'holds' if len(empty) == 1 else 'hold'} no text (pictures?)")


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


READER = FormatReader((".pptx",), "application/vnd.openxmlformats-officedocument.presentationml.presentation", pages)

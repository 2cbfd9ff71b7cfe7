"""DOCX: paragraphs, headings, lists and tables of a Word document, in their order, as one page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from specprefill_cli.documents.archives import checked_archive, office_module, row_text
from specprefill_cli.documents.reader import FormatReader, Pages, SourceFile

if TYPE_CHECKING:
    from docx.document import Document as WordDocument
    from lxml.etree import _Element as Element

W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
# Deleted and moved text, the second copy of a drawing for old programs, and properties hold no text of the document.
SKIPPED = {
    *(f"{W}{tag}" for tag in ("del", "moveFrom", "pPr", "rPr", "tblPr", "sectPr", "sdtPr")),
    "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback",
}
CHARACTERS = {f"{W}tab": "\t", f"{W}ptab": "\t", f"{W}br": "\n", f"{W}cr": "\n", f"{W}noBreakHyphen": "-"}
HEADING = re.compile(r"heading ([1-6])", re.IGNORECASE)
NOTES = ("footnotes", "endnotes")
MARGINS = ("header", "footer")


def pages(file: SourceFile) -> Pages:
    """Read headings as `#`, list items as `-`, table rows as `a | b`; headers and footers once, notes at the end."""
    word = office_module(file, "docx", "Word documents")
    yield file.page_text(document_lines(word.Document(checked_archive(file))))


def document_lines(document: WordDocument) -> Iterator[str]:
    """Yield all lines of a document. python-docx would skip inserted text and content controls."""
    levels = heading_levels(document)
    # The pages of a section share one header, the sections of a document often do.
    for text in dict.fromkeys(
        "\n".join(block_lines(part, levels)).strip() for part in related_parts(document, MARGINS)
    ):
        yield from (text, "") if text else ()
    yield from block_lines(document.element.body, levels)
    for part in related_parts(document, NOTES):
        yield ""
        yield from block_lines(part, levels)


def related_parts(document: WordDocument, kinds: tuple[str, ...]) -> list[Element]:
    """Return the XML trees of the document's other parts of some kinds."""
    from docx.oxml import parse_xml

    relations = [rel for rel in document.part.rels.values() if rel.reltype.rpartition("/")[2] in kinds]
    return [parse_xml(relation.target_part.blob) for relation in relations]


def heading_levels(document: WordDocument) -> dict[str, int]:
    """Return the level of each heading style by its id: ids are in the language of the program, names are not."""
    matches = {style.style_id: HEADING.fullmatch(style.name or "") for style in document.styles}
    return {identifier: int(match[1]) for identifier, match in matches.items() if match}


def block_lines(parent: Element, levels: dict[str, int]) -> Iterator[str]:
    """Yield the lines of paragraphs and table rows."""
    for child in parent:
        if child.tag == f"{W}p":
            yield paragraph_text(child, levels)
        elif child.tag == f"{W}tr":
            yield row_text(" ".join(block_lines(cell, levels)) for cell in row_cells(child))
        elif child.tag not in SKIPPED:
            yield from block_lines(child, levels)


def row_cells(row: Element) -> Iterator[Element]:
    """Yield the cells of a table row, including those inside a content control."""
    for child in row:
        if child.tag == f"{W}tc":
            yield child
        elif child.tag not in SKIPPED:
            yield from row_cells(child)


def paragraph_text(paragraph: Element, levels: dict[str, int]) -> str:
    """Return a paragraph's text, marked as a heading or list item."""
    text = "".join(inline_text(paragraph, levels))
    style = paragraph.find(f"{W}pPr/{W}pStyle")
    level = levels.get(style.get(f"{W}val") or "", 0) if style is not None else 0
    if level and text.strip():
        return f"\n{'#' * level} {text}"
    listed = paragraph.find(f"{W}pPr/{W}numPr") is not None
    return f"- {text}" if listed and text.strip() else text


def inline_text(node: Element, levels: dict[str, int]) -> Iterator[str]:
    """Yield the pieces of text in a paragraph: runs, links, inserted text, and text boxes as lines of their own."""
    for child in node:
        if child.tag == f"{W}t":
            yield child.text or ""
        elif child.tag in CHARACTERS:
            yield CHARACTERS[child.tag]
        elif child.tag == f"{W}txbxContent":
            yield "\n" + "\n".join(block_lines(child, levels)) + "\n"
        elif child.tag not in SKIPPED:
            yield from inline_text(child, levels)


READER = FormatReader((".docx",), "application/vnd.openxmlformats-officedocument.wordprocessingml.document", pages)

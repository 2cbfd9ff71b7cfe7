"""DOCX: paragraphs, headings, lists and tables of a Word document, in their order, as one page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from io import BytesIO
from typing import TYPE_CHECKING

from specprefill_cli.documents.archives import Pages, archive_document, office_module, row_text
from specprefill_cli.documents.document import Document
from specprefill_cli.documents.reader import FormatReader, Limits

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


def read_docx(data: bytes, name: str, limits: Limits) -> Document:
    """Headings as `#`, list items as `-`, table rows as `a | b`; headers and footers once, footnotes and endnotes at the end.

    Raises DocumentError: damaged, too large, or the extra `office` is not installed.
    """
    word = office_module("docx", name, "Word documents")

    def pages(stream: BytesIO, _warnings: list[str]) -> Pages:
        document = word.Document(stream)
        yield lines(document)

    return archive_document(data, name, limits, READER.media_type, pages)


def lines(document: WordDocument) -> Iterator[str]:
    """All lines of a document. The tree is walked here: python-docx leaves out inserted text and content controls."""
    levels = heading_levels(document)
    margins, notes = (parts_of(document, kinds) for kinds in (MARGINS, NOTES))
    # The pages of a section have one header, the sections of a document often the same.
    for text in dict.fromkeys("\n".join(block_lines(part, levels)).strip() for part in margins):
        yield from (text, "") if text else ()
    yield from block_lines(document.element.body, levels)
    for part in notes:
        yield ""
        yield from block_lines(part, levels)


def parts_of(document: WordDocument, kinds: tuple[str, ...]) -> list[Element]:
    """The trees of a document's other parts of some kinds."""
    from docx.oxml import parse_xml

    related = document.part.rels.values()
    return [parse_xml(one.target_part.blob) for one in related if one.reltype.rpartition("/")[2] in kinds]


def heading_levels(document: WordDocument) -> dict[str, int]:
    """The level of each heading style, by id: ids are in the language of the program, names are not."""
    named = {style.style_id: HEADING.fullmatch(style.name or "") for style in document.styles}
    return {identifier: int(match[1]) for identifier, match in named.items() if match}


def block_lines(parent: Element, levels: dict[str, int]) -> Iterator[str]:
    for child in parent:
        if child.tag == f"{W}p":
            yield paragraph_text(child, levels)
        elif child.tag == f"{W}tr":
            yield row_text(" ".join(block_lines(cell, levels)) for cell in cells(child))
        elif child.tag not in SKIPPED:
            yield from block_lines(child, levels)


def cells(row: Element) -> Iterator[Element]:
    """The cells of a table's row, those inside a content control too."""
    for child in row:
        if child.tag == f"{W}tc":
            yield child
        elif child.tag not in SKIPPED:
            yield from cells(child)


def paragraph_text(paragraph: Element, levels: dict[str, int]) -> str:
    text = "".join(inline_text(paragraph, levels))
    style = paragraph.find(f"{W}pPr/{W}pStyle")
    level = levels.get(style.get(f"{W}val"), 0) if style is not None else 0
    if level and text.strip():
        return f"\n{'#' * level} {text}"
    listed = paragraph.find(f"{W}pPr/{W}numPr") is not None
    return f"- {text}" if listed and text.strip() else text


def inline_text(node: Element, levels: dict[str, int]) -> Iterator[str]:
    """The pieces of text in a paragraph: runs, links, inserted text, and text boxes as lines of their own."""
    for child in node:
        if child.tag == f"{W}t":
            yield child.text or ""
        elif child.tag in CHARACTERS:
            yield CHARACTERS[child.tag]
        elif child.tag == f"{W}txbxContent":
            yield "\n" + "\n".join(block_lines(child, levels)) + "\n"
        elif child.tag not in SKIPPED:
            yield from inline_text(child, levels)


READER = FormatReader((".docx",), "application/vnd.openxmlformats-officedocument.wordprocessingml.document", read_docx)

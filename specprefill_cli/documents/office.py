"""DOCX and PPTX: paragraphs, headings, lists and tables of a Word document as one page, the slides of a presentation as pages.

Both write paragraphs as `p`, their text as `t`, and tables as `tr` and `tc`; their namespaces differ.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping
from xml.etree.ElementTree import Element
from zipfile import ZipFile

from specprefill_cli.documents.archives import entry_name, open_archive, parse_entry, row_text
from specprefill_cli.documents.document import page_ranges
from specprefill_cli.documents.reader import FormatReader, Pages, SourceFile

# Deleted and moved text, the second copy of a drawing for old programs, and properties hold no text of the document.
SKIPPED = {"del", "moveFrom", "Fallback", "pPr", "rPr", "tblPr", "sectPr", "sdtPr"}
CHARACTERS = {"tab": "\t", "ptab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
HEADING = re.compile(r"heading ([1-6])", re.IGNORECASE)
# The level of each heading style, by its id: ids are in the language of the program, names are not.
Levels = Mapping[str, int]


def document_pages(file: SourceFile) -> Pages:
    """Read headings as `#`, list items as `-`, table rows as `a | b`; headers and footers once, notes at the end."""
    with open_archive(file) as archive:
        yield file.page_text(document_lines(archive))


def slide_pages(file: SourceFile) -> Pages:
    """Yield, for each slide, its text in the file's order, tables as `a | b`, then the notes."""
    with open_archive(file) as archive:
        presentation = main_part(archive)
        entries = {identifier: entry for identifier, _, entry in relations(archive, presentation)}
        # An identifier without a namespace is the slide's own, not that of its entry.
        listed = parse_entry(archive, presentation).iterfind(".//{*}sldId")
        slides = [entries[value] for slide in listed for key, value in slide.items() if key.endswith("}id")]
        empty = []
        for number, slide in enumerate(slides, start=1):
            text = file.page_text(slide_lines(archive, slide))
            if not text.strip():
                empty.append(number)
            yield text
    if empty:
        file.warnings.append(f"{page_ranges(empty)} {'holds' if len(empty) == 1 else 'hold'} no text (pictures?)")


def relations(archive: ZipFile, entry: str) -> list[tuple[str, str, str]]:
    """The entries that one refers to: the identifier of each, its kind, and its name. Those of "" are the archive's own."""
    folder, name = posixpath.split(entry)
    listing = posixpath.join(folder, "_rels", f"{name}.rels")
    if listing not in archive.namelist():
        return []
    return [
        (link.get("Id", ""), link.get("Type", "").rpartition("/")[2], entry_name(folder, link.get("Target", "")))
        for link in parse_entry(archive, listing)
        if link.get("TargetMode") != "External"
    ]


def parse_related(archive: ZipFile, entry: str, *kinds: str) -> list[Element]:
    """The XML of the entries of some kinds that one refers to."""
    return [parse_entry(archive, name) for _, kind, name in relations(archive, entry) if kind in kinds]


def main_part(archive: ZipFile) -> str:
    """The entry that holds a document's body, or the list of slides."""
    return next(entry for _, kind, entry in relations(archive, "") if kind == "officeDocument")


def document_lines(archive: ZipFile) -> Iterator[str]:
    """Yield all lines of a Word document."""
    main = main_part(archive)
    levels = {}
    for style in (style for styles in parse_related(archive, main, "styles") for style in styles.findall("{*}style")):
        match = HEADING.fullmatch(attribute(style.find("{*}name"), "val"))
        if match:
            levels[attribute(style, "styleId")] = int(match[1])
    # The pages of a section share one header, the sections of a document often do.
    margins = parse_related(archive, main, "header", "footer")
    for text in dict.fromkeys("\n".join(block_lines(margin, levels)).strip() for margin in margins):
        yield from (text, "") if text else ()
    yield from block_lines(parse_entry(archive, main), levels)
    for notes in parse_related(archive, main, "footnotes", "endnotes"):
        yield ""
        yield from block_lines(notes, levels)


def slide_lines(archive: ZipFile, slide: str) -> Iterator[str]:
    """Yield the lines of a slide's shapes and of the speaker's notes."""
    yield from block_lines(parse_entry(archive, slide), {})
    for page in parse_related(archive, slide, "notesSlide"):
        for shape in page.iterfind(".//{*}sp"):
            # The other shapes on the page are the slide's picture and its number.
            if any(holder.get("type") == "body" for holder in shape.iterfind(".//{*}ph")):
                notes = "\n".join(block_lines(shape, {}))
                yield from (f"Notes: {notes}",) if notes.strip() else ()


def name_of(tag: str) -> str:
    """The name of a tag or an attribute without its namespace."""
    return tag.rpartition("}")[2]


def attribute(element: Element | None, name: str) -> str:
    """An attribute in whatever namespace; empty where there is none."""
    values = element.attrib if element is not None else {}
    return next((value for key, value in values.items() if name_of(key) == name), "")


def block_lines(parent: Element, levels: Levels) -> Iterator[str]:
    """Yield the lines of paragraphs and table rows."""
    for child in parent:
        name = name_of(child.tag)
        if name == "p":
            yield paragraph_text(child, levels)
        elif name == "tr":
            yield row_text(" ".join(block_lines(cell, levels)) for cell in row_cells(child))
        elif name not in SKIPPED:
            yield from block_lines(child, levels)


def row_cells(row: Element) -> Iterator[Element]:
    """Yield the cells of a table row, including those inside a content control."""
    for child in row:
        name = name_of(child.tag)
        if name == "tc":
            yield child
        elif name not in SKIPPED:
            yield from row_cells(child)


def paragraph_text(paragraph: Element, levels: Levels) -> str:
    """Return a paragraph's text, marked as a heading or list item."""
    text = "".join(inline_text(paragraph, levels))
    level = levels.get(attribute(paragraph.find("{*}pPr/{*}pStyle"), "val"), 0)
    if level and text.strip():
        return f"\n{'#' * level} {text}"
    is_item = paragraph.find("{*}pPr/{*}numPr") is not None
    return f"- {text}" if is_item and text.strip() else text


def inline_text(node: Element, levels: Levels) -> Iterator[str]:
    """Yield the pieces of text in a paragraph: runs, links, inserted text, and text boxes as lines of their own."""
    for child in node:
        name = name_of(child.tag)
        if name == "t":
            yield child.text or ""
        elif name in CHARACTERS:
            yield CHARACTERS[name]
        elif name == "txbxContent":
            yield "\n" + "\n".join(block_lines(child, levels)) + "\n"
        elif name not in SKIPPED:
            yield from inline_text(child, levels)


MEDIA_TYPE = "application/vnd.openxmlformats-officedocument"
DOCX = FormatReader((".docx",), f"{MEDIA_TYPE}.wordprocessingml.document", document_pages)
PPTX = FormatReader((".pptx",), f"{MEDIA_TYPE}.presentationml.presentation", slide_pages)

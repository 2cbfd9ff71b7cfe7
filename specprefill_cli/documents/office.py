"""DOCX and PPTX: the text of documents and slides.

Both write paragraphs as `p`, text as `t`, and tables as `tbl`, `tr` and `tc`, each in its own namespace.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from xml.etree.ElementTree import Element
from zipfile import ZipFile

from specprefill_cli.documents.archive import entry_name, open_archive, parse_entry
from specprefill_cli.documents.cleaning import superscript
from specprefill_cli.documents.document import hold
from specprefill_cli.documents.reader import Pages, SourceFile
from specprefill_cli.documents.tables import Cell, filled_rows, span_of, table_lines

# Not text of the document: deleted and moved text, the second copy of a drawing for old programs, and properties.
SKIPPED = {"del", "moveFrom", "Fallback", "pPr", "rPr", "tblPr", "sectPr", "sdtPr"}
CHARACTERS = {"tab": "\t", "ptab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
STRUCK = re.compile(rb"<w:d?strike(?: w:val=\"(?:1|true|on)\")?\s*/>|strike=\"(?:sng|dbl)Strike\"")
OFF = ("0", "false", "off", "none")
HEADING = re.compile(r"heading ([1-6])", re.IGNORECASE)
# The level of each heading style, by style id: ids depend on the program's language, names do not.
Levels = Mapping[str, int]


def document_pages(file: SourceFile) -> Pages:
    """Read headings as `#`, list items as `-`, headers and footers once, notes and drawings at the end."""
    with open_archive(file) as archive:
        warn_of_struck_text(file, archive, [main_part(archive)])
        yield file.page_text([*property_lines(archive), *document_lines(archive)])


def slide_pages(file: SourceFile) -> Pages:
    """Yield, for each slide, its text in the file's order, charts as tables, then the notes."""
    with open_archive(file) as archive:
        presentation = main_part(archive)
        entries = {identifier: entry for identifier, _, entry in relations(archive, presentation)}
        # Only an `id` with a namespace refers to an entry; the plain `id` is the slide's own.
        slide_elements = parse_entry(archive, presentation).iterfind(".//{*}sldId")
        slides = [entries[value] for slide in slide_elements for key, value in slide.items() if key.endswith("}id")]
        warn_of_struck_text(file, archive, slides)
        empty = []
        for number, slide in enumerate(slides, start=1):
            text = file.page_text([*(property_lines(archive) if number == 1 else ()), *slide_lines(archive, slide)])
            if not text.strip():
                empty.append(number)
            yield text
    if empty:
        file.warnings.append(f"{hold(empty)} no text (pictures?)")


def warn_of_struck_text(file: SourceFile, archive: ZipFile, entries: list[str]) -> None:
    """Warn if one of the entries has struck text."""
    if any(STRUCK.search(archive.read(entry)) for entry in entries):
        file.warnings.append("struck text is left out")


def property_lines(archive: ZipFile) -> Iterator[str]:
    """Yield the title and the author that a document's properties name, if they name a title."""
    for properties in parse_related(archive, "", "core-properties"):
        title, author = (properties.findtext(f".//{{*}}{name}") or "" for name in ("title", "creator"))
        if title.strip():
            yield from (title, *([f"Author: {author}"] if author.strip() else []), "")


def relations(archive: ZipFile, entry: str) -> list[tuple[str, str, str]]:
    """The entries that `entry` refers to: identifier, type of the relation, and name of each. entry: "" is the archive."""
    folder, name = posixpath.split(entry)
    listing = posixpath.join(folder, "_rels", f"{name}.rels")
    if listing not in archive.namelist():
        return []
    return [
        (link.get("Id", ""), link.get("Type", "").rpartition("/")[2], entry_name(folder, link.get("Target", "")))
        for link in parse_entry(archive, listing)
        if link.get("TargetMode") != "External"
    ]


def parse_related(archive: ZipFile, entry: str, *types: str) -> list[Element]:
    """Parse the entries that `entry` refers to by relations of these types."""
    return [parse_entry(archive, name) for _, kind, name in relations(archive, entry) if kind in types]


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
    # Sections often share a header or footer: yield each text once.
    margins = parse_related(archive, main, "header", "footer")
    for text in dict.fromkeys("\n".join(block_lines(margin, levels)).strip() for margin in margins):
        yield from (text, "") if text else ()
    yield from block_lines(parse_entry(archive, main), levels)
    for notes in parse_related(archive, main, "footnotes", "endnotes"):
        yield ""
        yield from block_lines(notes, levels)
    yield from drawing_lines(archive, main)


def drawing_lines(archive: ZipFile, entry: str) -> Iterator[str]:
    """Yield the texts of the diagrams and the tables of the charts that an entry shows."""
    for diagram in parse_related(archive, entry, "diagramData"):
        yield from block_lines(diagram, {})
    for chart in parse_related(archive, entry, "chart"):
        for title in chart.iterfind(".//{*}title"):
            yield from block_lines(title, {})
        names, columns = [""], [dict[str, str]()]
        for series in chart.iterfind(".//{*}ser"):
            names.append(series.findtext("{*}tx//{*}v") or "")
            columns[0] |= points(series, "cat", "xVal")
            columns.append(points(series, "val", "yVal"))
        rows = ([column.get(place, "") for column in columns] for place in dict.fromkeys(chain(*columns)))
        yield from table_lines(chain([names], rows), marked=1)


def points(series: Element, *names: str) -> dict[str, str]:
    """The values of a chart's series by their place."""
    found = (point for name in names for point in series.iterfind(f"{{*}}{name}//{{*}}pt"))
    return {point.get("idx", ""): point.findtext("{*}v") or "" for point in found}


def slide_lines(archive: ZipFile, slide: str) -> Iterator[str]:
    """Yield the lines of a slide's shapes and of the speaker's notes."""
    yield from block_lines(parse_entry(archive, slide), {})
    yield from drawing_lines(archive, slide)
    for page in parse_related(archive, slide, "notesSlide"):
        for shape in page.iterfind(".//{*}sp"):
            # The other shapes on the page are the slide's picture and its number.
            if any(holder.get("type") == "body" for holder in shape.iterfind(".//{*}ph")):
                notes = "\n".join(block_lines(shape, {}))
                yield from (f"Notes: {notes}",) if notes.strip() else ()


def name_of(tag: str) -> str:
    """The name of a tag or an attribute, without the namespace."""
    return tag.rpartition("}")[2]


def attribute(element: Element | None, name: str) -> str:
    """An attribute's value in any namespace; empty if it is missing."""
    attributes = element.attrib if element is not None else {}
    return next((value for key, value in attributes.items() if name_of(key) == name), "")


def block_lines(parent: Element, levels: Levels) -> Iterator[str]:
    """Yield the lines of paragraphs and table rows, and the texts in place of pictures."""
    for block in parts(parent, "p", "tbl", "cNvPr"):
        if name_of(block.tag) == "p":
            yield paragraph_text(block, levels)
        elif name_of(block.tag) == "tbl":
            yield from table_block(block, levels)
        else:
            yield from filter(None, [block.get("descr")])


def parts(parent: Element, *names: str) -> Iterator[Element]:
    """Yield the outermost elements with these names, including those inside a content control."""
    for child in parent:
        name = name_of(child.tag)
        if name in names:
            yield child
        elif name not in SKIPPED:
            yield from parts(child, *names)


def table_block(table: Element, levels: Levels) -> Iterator[str]:
    """Yield the rows of a table; the lines of its cells, where it only arranges parts of the page."""
    rows = list(parts(table, "tr"))
    cells = list(chain.from_iterable(parts(row, "tc") for row in rows))
    if len(cells) == len(rows) or any(cell.find(".//{*}tbl") is not None for cell in cells):
        for cell in cells:
            yield from block_lines(cell, levels)
        return
    heads = [row.find("{*}trPr/{*}tblHeader") is not None for row in rows] + [False]
    yield from table_lines(filled_rows([*cells_of(row, levels)] for row in rows), marked=heads.index(False) % len(rows))


def cells_of(row: Element, levels: Levels) -> Iterator[Cell]:
    """Yield the cells of a row. In slides the cells that another one covers are there, too."""
    for cell in parts(row, "tc"):
        if "1" not in (cell.get("hMerge"), cell.get("vMerge")):
            merge = cell.find("{*}tcPr/{*}vMerge")
            is_above = merge is not None and attribute(merge, "val") != "restart"
            text = " ".join(filter(None, map(str.strip, block_lines(cell, levels))))
            columns = attribute(cell.find("{*}tcPr/{*}gridSpan"), "val") or cell.get("gridSpan", "")
            yield Cell(text, span_of(columns), span_of(cell.get("rowSpan", "")), is_above)


def paragraph_text(paragraph: Element, levels: Levels) -> str:
    """Return a paragraph's text, marked as a heading or list item."""
    pieces: list[str] = []
    add_inline(pieces, paragraph, levels)
    text = "".join(pieces)
    level = levels.get(attribute(paragraph.find("{*}pPr/{*}pStyle"), "val"), 0)
    if level and text.strip():
        return f"\n{'#' * level} {text}"
    is_item = paragraph.find("{*}pPr/{*}numPr") is not None
    return f"- {text}" if is_item and text.strip() else text


def add_inline(pieces: list[str], node: Element, levels: Levels) -> None:
    """Add the pieces of text in a paragraph: runs, links, inserted text, fields, and text boxes as lines of their own."""
    for child in node:
        name = name_of(child.tag)
        if name in SKIPPED or (name == "r" and is_hidden(child)):
            continue
        if name == "r" and is_raised(child):
            raised: list[str] = []
            add_inline(raised, child, levels)
            pieces[-1:] = [superscript("".join(pieces[-1:]), "".join(raised))]
        elif name == "t":
            pieces.append(child.text or "")
        elif name in CHARACTERS:
            pieces.append(CHARACTERS[name])
        elif name == "txbxContent":
            pieces.append("\n" + "\n".join(block_lines(child, levels)) + "\n")
        elif name == "docPr":
            pieces += [f"\n{text}\n" for text in (child.get("descr"),) if text]
        else:
            add_inline(pieces, child, levels)


def is_hidden(run: Element) -> bool:
    """Whether a run is hidden or struck."""
    marks = (run.find(f"{{*}}rPr/{{*}}{name}") for name in ("vanish", "strike", "dstrike"))
    is_struck = attribute(run.find("{*}rPr"), "strike") not in ("", "noStrike")
    return is_struck or any(mark is not None and attribute(mark, "val") not in OFF for mark in marks)


def is_raised(run: Element) -> bool:
    """Whether a run is superscript."""
    is_superscript = attribute(run.find("{*}rPr/{*}vertAlign"), "val") == "superscript"
    return is_superscript or attribute(run.find("{*}rPr"), "baseline")[:1] in tuple("123456789")

"""DOCX, PPTX and EPUB: ZIP archives of XML, with guards against hostile archives.

DOCX and PPTX write paragraphs as `p`, text as `t`, and tables as `tr` and `tc`, each in its own namespace.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping
from io import BytesIO
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree
from xml.etree.ElementTree import Element
from zipfile import ZipFile

from specprefill_cli.documents.cleaning import row_text
from specprefill_cli.documents.document import page_ranges
from specprefill_cli.documents.encoding import decode_text
from specprefill_cli.documents.html import visible_text
from specprefill_cli.documents.reader import Pages, SourceFile

MARKUP_SUFFIXES = (".xml", ".rels", ".opf", ".xhtml", ".html", ".htm")
CONTAINER, ENCRYPTION = "META-INF/container.xml", "META-INF/encryption.xml"
# Not text of the document: deleted and moved text, the second copy of a drawing for old programs, and properties.
SKIPPED = {"del", "moveFrom", "Fallback", "pPr", "rPr", "tblPr", "sectPr", "sdtPr"}
CHARACTERS = {"tab": "\t", "ptab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
HEADING = re.compile(r"heading ([1-6])", re.IGNORECASE)
# The level of each heading style, by style id: ids depend on the program's language, names do not.
Levels = Mapping[str, int]


def open_archive(file: SourceFile) -> ZipFile:
    """Open an archive. Raises DocumentError if its declared sizes make it a ZIP bomb.

    The declared sizes can be trusted: zipfile never unpacks more of an entry.
    """
    archive = ZipFile(BytesIO(file.data))
    entries = archive.infolist()
    xml_bytes = sum(entry.file_size for entry in entries if entry.filename.lower().endswith(MARKUP_SUFFIXES))
    sizes = (
        (sum(entry.file_size for entry in entries), file.limits.max_unpacked_bytes, "bytes"),
        (xml_bytes, file.limits.max_xml_bytes, "bytes of XML"),
    )
    for size, limit, unit in sizes:
        if size > limit:
            raise file.error(f"unpacks to {size:,} {unit}, the limit is {limit:,}", "split it")
    return archive


def parse_entry(archive: ZipFile, entry: str) -> Element:
    """Parse an XML entry. Raises ParseError for entities that expand without bound: expat limits them."""
    return ElementTree.fromstring(archive.read(entry))


def entry_name(folder: str, link: str) -> str:
    """The name of the entry that a link leads to. folder: of the entry with the link."""
    return posixpath.normpath(posixpath.join("/", folder, unquote(urlsplit(link).path))).lstrip("/")


def document_pages(file: SourceFile) -> Pages:
    """Read headings as `#`, list items as `-`, table rows as `a | b`; headers and footers once, notes at the end."""
    with open_archive(file) as archive:
        yield file.page_text(document_lines(archive))


def slide_pages(file: SourceFile) -> Pages:
    """Yield, for each slide, its text in the file's order, tables as `a | b`, then the notes."""
    with open_archive(file) as archive:
        presentation = main_part(archive)
        entries = {identifier: entry for identifier, _, entry in relations(archive, presentation)}
        # Only an `id` with a namespace refers to an entry; the plain `id` is the slide's own.
        slide_elements = parse_entry(archive, presentation).iterfind(".//{*}sldId")
        slides = [entries[value] for slide in slide_elements for key, value in slide.items() if key.endswith("}id")]
        empty_slides = []
        for number, slide in enumerate(slides, start=1):
            text = file.page_text(slide_lines(archive, slide))
            if not text.strip():
                empty_slides.append(number)
            yield text
    if empty_slides:
        file.warnings.append(
            f"{page_ranges(empty_slides)} {'holds' if len(empty_slides) == 1 else 'hold'} no text (pictures?)"
        )


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
    return [
        parse_entry(archive, name) for _, relation_type, name in relations(archive, entry) if relation_type in types
    ]


def main_part(archive: ZipFile) -> str:
    """The entry that holds a document's body, or the list of slides."""
    return next(entry for _, relation_type, entry in relations(archive, "") if relation_type == "officeDocument")


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
    """The name of a tag or an attribute, without the namespace."""
    return tag.rpartition("}")[2]


def attribute(element: Element | None, name: str) -> str:
    """An attribute's value in any namespace; empty if it is missing."""
    attributes = element.attrib if element is not None else {}
    return next((value for key, value in attributes.items() if name_of(key) == name), "")


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


def chapter_pages(file: SourceFile) -> Pages:
    """Yield the chapters in reading order. Raises DocumentError for a book with copy protection."""
    with open_archive(file) as book:
        entries = set(book.namelist())
        chapters = reading_order(book)
        if ENCRYPTION in entries and set(chapters) & encrypted_entries(book):
            raise file.error("the book is protected against copying (DRM)", "use an unprotected copy")
        missing = [chapter for chapter in chapters if chapter not in entries]
        if missing:
            file.warnings.append(f"{len(missing)} of {len(chapters)} chapters are missing, the first: {missing[0]}")
        for chapter in chapters:
            if chapter in entries:
                page = SourceFile(book.read(chapter), f"{file.name}:{chapter}", file.limits)
                _, text = visible_text(decode_text(page, is_markup=True), file.stop)
                file.warnings += [f"{chapter}: {warning}" for warning in page.warnings]
                yield file.page_text(text.split("\n"))


def reading_order(book: ZipFile) -> list[str]:
    """Return the names of the entries that hold the chapters, in the order of the package document's spine."""
    package = next(parse_entry(book, CONTAINER).iterfind(".//{*}rootfile")).get("full-path", "")
    package_document = parse_entry(book, package)
    links = {item.get("id"): item.get("href", "") for item in package_document.iterfind(".//{*}item")}
    identifiers = [itemref.get("idref") for itemref in package_document.iterfind(".//{*}itemref")]
    return [entry_name(posixpath.dirname(package), links[name]) for name in identifiers if name in links]


def encrypted_entries(book: ZipFile) -> set[str]:
    """Return the names of the encrypted entries; in many books these are only the fonts."""
    references = parse_entry(book, ENCRYPTION).iterfind(".//{*}CipherReference")
    return {entry_name("", reference.get("URI", "")) for reference in references}

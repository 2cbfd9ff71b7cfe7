"""EPUB: the chapters of a book as pages, read as the HTML pages that they are."""

import posixpath
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree
from zipfile import ZipFile

from specprefill_cli.documents.archives import checked_archive
from specprefill_cli.documents.encoding import declared_encoding, decode
from specprefill_cli.documents.html import visible_text
from specprefill_cli.documents.reader import FormatReader, Pages, SourceFile

CONTAINER, ENCRYPTION = "META-INF/container.xml", "META-INF/encryption.xml"


def pages(file: SourceFile) -> Pages:
    """Yield the chapters in reading order. Raises DocumentError: protected against copying."""
    with ZipFile(checked_archive(file)) as book:
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
                _, text = visible_text(decode(page, declared_encoding(page.data)), file.stop)
                file.warnings += [f"{chapter}: {warning}" for warning in page.warnings]
                yield file.page_text(text.split("\n"))


def reading_order(book: ZipFile) -> list[str]:
    """Return the names of the entries that hold the chapters, in the order of the package document's spine."""
    rootfile = parse(book, CONTAINER).find(".//{*}rootfile")
    if rootfile is None:
        raise ValueError(f"{CONTAINER} names no package document")
    package = rootfile.get("full-path", "")
    opf = parse(book, package)
    hrefs = {item.get("id"): item.get("href", "") for item in opf.iterfind(".//{*}item")}
    identifiers = [itemref.get("idref") for itemref in opf.iterfind(".//{*}itemref")]
    return [entry_name(posixpath.dirname(package), hrefs[name]) for name in identifiers if name in hrefs]


def encrypted_entries(book: ZipFile) -> set[str]:
    """Return the names of the encrypted entries; in many books these are the fonts alone."""
    return {entry_name("", node.get("URI", "")) for node in parse(book, ENCRYPTION).iterfind(".//{*}CipherReference")}


def entry_name(folder: str, href: str) -> str:
    """Resolve a link in `folder` to the name of the archive's entry."""
    return posixpath.normpath(posixpath.join(folder, unquote(urlsplit(href).path)))


def parse(book: ZipFile, entry: str) -> ElementTree.Element:
    """Parse an XML entry. Raises ValueError for one that declares entities: they can grow without bound."""
    xml = book.read(entry)
    if b"<!ENTITY" in xml:
        raise ValueError(f"{entry} declares XML entities")
    return ElementTree.fromstring(xml)


READER = FormatReader((".epub",), "application/epub+zip", pages)

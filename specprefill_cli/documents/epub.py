"""EPUB: the chapters of a book as pages, read as the HTML pages that they are."""

import posixpath
from zipfile import ZipFile

from specprefill_cli.documents.archives import entry_name, open_archive, parse_entry
from specprefill_cli.documents.encoding import decode_markup
from specprefill_cli.documents.html import visible_text
from specprefill_cli.documents.reader import FormatReader, Pages, SourceFile

CONTAINER, ENCRYPTION = "META-INF/container.xml", "META-INF/encryption.xml"


def pages(file: SourceFile) -> Pages:
    """Yield the chapters in reading order. Raises DocumentError: protected against copying."""
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
                _, text = visible_text(decode_markup(page), file.stop)
                file.warnings += [f"{chapter}: {warning}" for warning in page.warnings]
                yield file.page_text(text.split("\n"))


def reading_order(book: ZipFile) -> list[str]:
    """Return the names of the entries that hold the chapters, in the order of the package document's spine."""
    rootfile = parse_entry(book, CONTAINER).find(".//{*}rootfile")
    if rootfile is None:
        raise ValueError(f"{CONTAINER} names no package document")
    package = rootfile.get("full-path", "")
    opf = parse_entry(book, package)
    links = {item.get("id"): item.get("href", "") for item in opf.iterfind(".//{*}item")}
    identifiers = [itemref.get("idref") for itemref in opf.iterfind(".//{*}itemref")]
    return [entry_name(posixpath.dirname(package), links[name]) for name in identifiers if name in links]


def encrypted_entries(book: ZipFile) -> set[str]:
    """Return the names of the encrypted entries; in many books these are the fonts alone."""
    references = parse_entry(book, ENCRYPTION).iterfind(".//{*}CipherReference")
    return {entry_name("", reference.get("URI", "")) for reference in references}


READER = FormatReader((".epub",), "application/epub+zip", pages)

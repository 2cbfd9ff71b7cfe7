"""EPUB: the chapters of a book as pages."""

import posixpath
from zipfile import ZipFile

from specprefill_cli.documents.archive import entry_name, open_archive, parse_entry
from specprefill_cli.documents.encoding import decode_text
from specprefill_cli.documents.html import visible_text
from specprefill_cli.documents.reader import Pages, SourceFile

CONTAINER, ENCRYPTION = "META-INF/container.xml", "META-INF/encryption.xml"
DUBLIN_CORE = "http://purl.org/dc/elements/1.1/"


def pages(file: SourceFile) -> Pages:
    """Yield the chapters in the order of the spine. Raises DocumentError for a book with copy protection."""
    with open_archive(file) as book:
        entries = set(book.namelist())
        package_name = next(parse_entry(book, CONTAINER).iterfind(".//{*}rootfile")).get("full-path", "")
        package = parse_entry(book, package_name)
        links = {item.get("id"): item.get("href", "") for item in package.iterfind(".//{*}item")}
        spine = (links.get(itemref.get("idref")) for itemref in package.iterfind(".//{*}itemref"))
        chapters = [entry_name(posixpath.dirname(package_name), link) for link in spine if link is not None]
        if ENCRYPTION in entries and set(chapters) & encrypted_entries(book):
            raise file.error("the book is protected against copying (DRM)", "use an unprotected copy")
        missing = [chapter for chapter in chapters if chapter not in entries]
        if missing:
            file.warnings.append(f"{len(missing)} of {len(chapters)} chapters are missing, the first: {missing[0]}")
        titles = [package.findtext(f".//{{{DUBLIN_CORE}}}title") or ""]
        titles += (f"Author: {author.text}" for author in package.iterfind(f".//{{{DUBLIN_CORE}}}creator"))
        for chapter in chapters:
            if chapter in entries:
                page = SourceFile(book.read(chapter), f"{file.name}:{chapter}", file.limits)
                _, text = visible_text(decode_text(page, is_markup=True), file.stop)
                file.warnings += [f"{chapter}: {warning}" for warning in page.warnings]
                yield file.page_text([*filter(None, titles), *([""] if any(titles) else []), *text.split("\n")])
                titles = []


def encrypted_entries(book: ZipFile) -> set[str]:
    """Return the names of the encrypted entries; in many books these are only the fonts."""
    references = parse_entry(book, ENCRYPTION).iterfind(".//{*}CipherReference")
    return {entry_name("", reference.get("URI", "")) for reference in references}

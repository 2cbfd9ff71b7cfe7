"""ZIP archives of XML, with guards against hostile archives."""

import posixpath
from io import BytesIO
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree
from xml.etree.ElementTree import Element
from zipfile import ZipFile

from specprefill_cli.documents.reader import SourceFile

MARKUP_SUFFIXES = (".xml", ".rels", ".opf", ".xhtml", ".html", ".htm")


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

"""Office formats are ZIP archives of XML: guards against hostile ones, and what their readers share."""

import posixpath
from collections.abc import Iterable
from io import BytesIO
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree
from xml.etree.ElementTree import Element
from zipfile import ZipFile

from specprefill_cli.documents.reader import SourceFile

MARKUP_SUFFIXES = (".xml", ".rels", ".opf", ".xhtml", ".html", ".htm")


def open_archive(file: SourceFile) -> ZipFile:
    """Open an archive. Raises DocumentError for a ZIP bomb, judged by the sizes it declares.

    zipfile never unpacks more of an entry than its declared size.
    """
    archive = ZipFile(BytesIO(file.data))
    entries = archive.infolist()
    xml = sum(entry.file_size for entry in entries if entry.filename.lower().endswith(MARKUP_SUFFIXES))
    sizes = (
        (sum(entry.file_size for entry in entries), file.limits.max_unpacked_bytes, "bytes"),
        (xml, file.limits.max_xml_bytes, "bytes of XML"),
        (len(entries), file.limits.max_entries, "parts"),
    )
    for size, limit, unit in sizes:
        if size > limit:
            raise file.error(f"unpacks to {size:,} {unit}, the limit is {limit:,}", "split it")
    return archive


def parse_entry(archive: ZipFile, entry: str) -> Element:
    """Parse an XML entry. Raises ValueError for one that declares entities: they can grow without bound."""
    xml = archive.read(entry)
    if b"<!ENTITY" in xml:
        raise ValueError(f"{entry} declares XML entities")
    return ElementTree.fromstring(xml)


def entry_name(folder: str, link: str) -> str:
    """The name of the entry that a link in the entries' `folder` leads to."""
    return posixpath.normpath(posixpath.join("/", folder, unquote(urlsplit(link).path))).lstrip("/")


def row_text(cells: Iterable[str]) -> str:
    """Write a table row as `a | b`; empty cells before a filled one keep their bars, so that columns stay aligned."""
    texts = [" ".join(cell.split()) for cell in cells]
    while texts and not texts[-1]:
        texts.pop()
    return " ".join(" | ".join(texts).split())

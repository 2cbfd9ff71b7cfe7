"""EPUB: the chapters of a book as pages, read as the HTML pages that they are."""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Iterator
from io import BytesIO
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree
from zipfile import ZipFile

from specprefill_cli.documents.archives import Pages, archive_document
from specprefill_cli.documents.document import Document
from specprefill_cli.documents.encoding import decode
from specprefill_cli.documents.errors import document_error
from specprefill_cli.documents.reader import FormatReader, Limits

CONTAINER, ENCRYPTION = "META-INF/container.xml", "META-INF/encryption.xml"


def read_epub(data: bytes, name: str, limits: Limits) -> Document:
    """The chapters in reading order, one a page.

    Raises DocumentError: damaged, too large, or protected against copying.
    """

    def pages(stream: BytesIO, warnings: list[str]) -> Pages:
        with ZipFile(stream) as book:
            entries = set(book.namelist())
            chapters = reading_order(book)
            if set(chapters) & encrypted(book, entries):
                raise document_error(name, "the book is protected against copying (DRM)", "use an unprotected copy")
            missing = [chapter for chapter in chapters if chapter not in entries]
            if missing:
                warnings.append(f"{len(missing)} of {len(chapters)} chapters are missing, the first: {missing[0]}")
            for chapter in chapters:
                if chapter in entries:
                    yield chapter_lines(book.read(chapter), f"{name}:{chapter}")

    return archive_document(data, name, limits, READER.media_type, pages)


def reading_order(book: ZipFile) -> list[str]:
    """Names of the entries that hold the chapters, as the package document's spine orders them."""
    (root,) = [node.get("full-path", "") for node in parse(book, CONTAINER) if local(node) == "rootfile"][:1]
    nodes = list(parse(book, root))
    hrefs = {node.get("id"): node.get("href", "") for node in nodes if local(node) == "item"}
    spine = [hrefs[node.get("idref")] for node in nodes if local(node) == "itemref" and node.get("idref") in hrefs]
    return [resolve(posixpath.dirname(root), href) for href in spine]


def encrypted(book: ZipFile, entries: set[str]) -> set[str]:
    """Names of the entries that are encrypted; books often do that to their fonts alone."""
    if ENCRYPTION not in entries:
        return set()
    references = [node.get("URI", "") for node in parse(book, ENCRYPTION) if local(node) == "CipherReference"]
    return {resolve("", reference) for reference in references}


def resolve(folder: str, href: str) -> str:
    return posixpath.normpath(posixpath.join(folder, unquote(urlsplit(href).path)))


def parse(book: ZipFile, entry: str) -> Iterator[ElementTree.Element]:
    """All elements of an XML entry. Raises ValueError for one that declares entities: they can grow without bound."""
    xml = book.read(entry)
    if b"<!ENTITY" in xml:
        raise ValueError(f"{entry} declares XML entities")
    return ElementTree.fromstring(xml).iter()


def local(node: ElementTree.Element) -> str:
    """An element's name without its namespace; empty for comments."""
    return node.tag.rpartition("}")[2] if isinstance(node.tag, str) else ""


def chapter_lines(markup: bytes, name: str) -> list[str]:
    from bs4 import BeautifulSoup
    from bs4.dammit import EncodingDetector

    from specprefill_cli.documents.html_text import visible_lines

    text, _ = decode(markup, name, EncodingDetector.find_declared_encoding(markup))
    return visible_lines(BeautifulSoup(text, "html.parser"), threading.Event()).split("\n")


READER = FormatReader((".epub",), "application/epub+zip", read_epub)

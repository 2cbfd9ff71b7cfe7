"""Files that hold other files: ZIP archives of XML with guards against hostile ones, books (EPUB), mail (EML, MHTML)."""

import posixpath
from email import message_from_bytes, policy
from email.message import EmailMessage
from io import BytesIO
from typing import Any
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree
from xml.etree.ElementTree import Element
from zipfile import ZipFile

from specprefill_cli.documents.cleaning import clean_text
from specprefill_cli.documents.html import visible_text
from specprefill_cli.documents.reader import LIMITS, Pages, SourceFile
from specprefill_cli.documents.text import decode_text

CONTAINER, ENCRYPTION = "META-INF/container.xml", "META-INF/encryption.xml"
HEADERS = ("From", "To", "Cc", "Date", "Subject")
SIGNATURES = ("application/pgp-signature", "application/pkcs7-signature", "application/x-pkcs7-signature")


def open_archive(file: SourceFile) -> ZipFile:
    """Open an archive. Raises DocumentError for a ZIP bomb; zipfile unpacks no more than it declares."""
    archive = ZipFile(BytesIO(file.data))
    growth = sum(entry.file_size for entry in archive.infolist()) - len(file.data)
    if growth > LIMITS.max_growth:
        raise file.error(f"unpacks to {growth:,} more bytes, the limit is {LIMITS.max_growth:,}", "split it")
    return archive


def parse_entry(archive: ZipFile, entry: str) -> Element:
    """Parse an XML entry. Raises ParseError for entities that expand without bound: expat limits them."""
    return ElementTree.fromstring(archive.read(entry))


def entry_name(folder: str, link: str) -> str:
    """The name of the entry that a link leads to. folder: of the entry with the link."""
    return posixpath.normpath(posixpath.join("/", folder, unquote(urlsplit(link).path))).lstrip("/")


def book_pages(file: SourceFile) -> Pages:
    """Yield the chapters in the order of the spine. Raises DocumentError for a book with copy protection."""
    with open_archive(file) as book:
        entries = set(book.namelist())
        package_name = next(parse_entry(book, CONTAINER).iterfind(".//{*}rootfile")).get("full-path", "")
        package = parse_entry(book, package_name)
        links = {item.get("id"): item.get("href", "") for item in package.iterfind(".//{*}item")}
        spine = (links.get(itemref.get("idref")) for itemref in package.iterfind(".//{*}itemref"))
        chapters = [entry_name(posixpath.dirname(package_name), link) for link in spine if link is not None]
        # In many books only the fonts are encrypted.
        locks = parse_entry(book, ENCRYPTION).iterfind(".//{*}CipherReference") if ENCRYPTION in entries else ()
        if not {entry_name("", lock.get("URI", "")) for lock in locks}.isdisjoint(chapters):
            raise file.error("the book is protected against copying (DRM)", "use an unprotected copy")
        if missing := [chapter for chapter in chapters if chapter not in entries]:
            file.warnings.append(f"{len(missing)} of {len(chapters)} chapters are missing, the first: {missing[0]}")
        titles = [package.findtext(".//{*}title") or ""]
        titles += (f"Author: {author.text}" for author in package.iterfind(".//{*}creator"))
        head = "\n".join(filter(None, titles))
        for chapter in filter(entries.__contains__, chapters):
            page = SourceFile(book.read(chapter), f"{file.name}:{chapter}")
            _, text = visible_text(decode_text(page, is_markup=True))
            file.warnings += [f"{chapter}: {warning}" for warning in page.warnings]
            yield file.page_text([f"{head}\n\n{text}" if head else text])
            head = ""


def mail_pages(file: SourceFile) -> Pages:
    """Yield the head and the body, of HTML what a browser shows, then a page for each attached document that can be read."""
    message = message_from_bytes(file.data, policy=policy.default)
    assert isinstance(message, EmailMessage)
    texts = ["\n".join(f"{name}: {message[name]}" for name in HEADERS if message[name])]
    body = message.get_body(("plain", "html"))
    if body is not None:
        try:
            text = body.get_content()
        except LookupError:
            # A character set that Python does not know.
            payload: Any = body.get_payload(decode=True)
            text = decode_text(SourceFile(payload or b"", file.name))
        is_html = body.get_content_subtype() == "html"
        texts.append(visible_text(text)[1] if is_html else clean_text(text).strip())
    yield "\n\n".join(filter(None, texts))
    for part in message.iter_attachments() if message.is_multipart() else () if body else (message,):
        kind = part.get_content_type()
        # Pictures of the body have an identifier; they are part of its design.
        if kind in SIGNATURES or (kind.startswith("image/") and part["Content-ID"]):
            continue
        is_message = kind == "message/rfc822"
        data: Any = part.get_content().as_bytes() if is_message else part.get_payload(decode=True)
        if text := file.attached(part.get_filename() or ("message.eml" if is_message else kind), data or b""):
            yield text

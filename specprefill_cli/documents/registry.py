"""The list of all readers, and the choice among them: by content first, by suffix second."""

import codecs
import re
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import PurePath

from specprefill_cli.documents import containers, extras, html, office, pdf, text, xlsx
from specprefill_cli.documents.document import Document, join_pages
from specprefill_cli.documents.reader import LIMITS, Reader, SourceFile, read_in_time
from specprefill_cli.documents.text import BOM_ENCODINGS
from specprefill_cli.errors import DocumentError, document_error, first_line, one_line

# The PDF standard allows up to 1024 bytes of other data before the header; servers add many lines to a mail's.
HEADER_BYTES, MAIL_HEADER_BYTES = 1024, 2**16
ZIP_SIGNATURE = b"PK\x03\x04"
# Only signatures that never start a plain text; most other binary files hold NUL bytes.
BINARY_SIGNATURES = (
    (extras.OLD_OFFICE, "an old or encrypted Microsoft Office file"),
    (b"%!PS", "a PostScript file"),
    (ZIP_SIGNATURE, "a ZIP archive"),
)
# The first entries of an archive and the list of entries at its end tell the format; a damaged file may lack the list.
ARCHIVE_START_BYTES, ARCHIVE_END_BYTES = 4096, 2**16
OFFICE_ENTRIES = (
    (b"mimetypeapplication/vnd.oasis.opendocument.", containers.opendocument_pages),
    (b"META-INF/container.xml", containers.book_pages),
    (b"application/epub+zip", containers.book_pages),
    (b"word/", office.document_pages),
    (b"ppt/", office.slide_pages),
    (b"xl/", xlsx.pages),
)
HTML_START = re.compile(rb"\s*(?:<\?xml[^>]{0,200}>\s*)?(?:<!--[^>]{0,500}-->\s*)?<(?:!doctype\s+html|html)\b", re.I)
MAIL_START = re.compile(rb"(?:[\w-]+:.*\n(?:[ \t].*\n)*)*(?:MIME-Version: *1|Message-ID: *<)", re.IGNORECASE)
BINARY_READERS: Mapping[str, Reader] = {
    ".pdf": pdf.pages,
    ".docx": office.document_pages,
    ".pptx": office.slide_pages,
    ".xlsx": xlsx.pages,
    ".epub": containers.book_pages,
    **dict.fromkeys((".odt", ".ods", ".odp"), containers.opendocument_pages),
    **dict.fromkeys(extras.FOREIGN_SUFFIXES, extras.foreign_pages),
}
READERS: Mapping[str, Reader] = {
    **BINARY_READERS,
    **dict.fromkeys((".html", ".htm", ".xhtml"), html.pages),
    **dict.fromkeys((*text.MARKDOWN_SUFFIXES, ".txt", ".text", ".rst"), text.text_pages),
    **dict.fromkeys((".csv", ".tsv"), text.csv_pages),
    ".mbox": containers.mailbox_pages,
    **dict.fromkeys((".eml", ".mht", ".mhtml"), containers.mail_pages),
}
KNOWN_SUFFIXES = tuple(READERS)


def read_document(data: bytes, name: str, step: Callable[[str], None] = lambda _text: None) -> Document:
    """Read a document by its content or, failing that, its suffix. Raises DocumentError alone."""
    if not data:
        raise document_error(name, "the file is empty", "give a file with text in it")
    if len(data) > LIMITS.max_bytes:
        raise document_error(name, f"larger than {LIMITS.max_bytes:,} bytes", "split it into smaller files")
    file = SourceFile(data, name, step, read_attached=read_file)
    read_in_time(read_file, file)
    joined, ranges = join_pages(file.texts)
    if not joined.strip():
        raise document_error(name, "it holds no text", "give a file with text in it")
    return Document(name, joined, ranges, tuple(map(one_line, file.warnings)))


def read_file(file: SourceFile) -> None:
    """Read the pages of a file with the reader that fits. Raises DocumentError."""
    try:
        with closing(choose_reader(file.data, file.name)(file)) as texts:
            for page_text in texts:
                file.add_page(page_text)
    except DocumentError:
        raise
    except Exception as error:
        # No parser documents all its errors on damaged files.
        cause = f"the file is damaged or of another kind ({first_line(error)})"
        raise file.error(cause, "open it and save it again") from error


def choose_reader(data: bytes, name: str) -> Reader:
    """Choose the reader for `data`; a suffix never overrules the content. Raises DocumentError if no reader fits."""
    head, suffix = data[:HEADER_BYTES], PurePath(name).suffix.lower()
    if data.startswith(ZIP_SIGNATURE):
        entries = data[:ARCHIVE_START_BYTES] + data[-ARCHIVE_END_BYTES:]
        # The first entry counts: a presentation may hold a Word document.
        if readers := {entries.find(entry): reader for entry, reader in OFFICE_ENTRIES if entry in entries}:
            return readers[min(readers)]
    if extras.foreign_type(data):
        return extras.foreign_pages
    # A text about PDF files may mention the header in its first lines, but has no trailer.
    if head.startswith(b"%PDF-") or (b"%PDF-" in head and b"startxref" in data):
        return pdf.pages
    if suffix in extras.PICTURE_SUFFIXES and data.startswith(extras.PICTURE_SIGNATURES):
        return extras.picture_pages
    refuse_binary(data, name, suffix)
    if suffix in READERS:
        return READERS[suffix]
    if containers.MAIL_BORDER.match(head):
        return containers.mailbox_pages
    if MAIL_START.match(data[:MAIL_HEADER_BYTES]):
        return containers.mail_pages
    return html.pages if HTML_START.match(head.removeprefix(codecs.BOM_UTF8)) else text.text_pages


def refuse_binary(data: bytes, name: str, suffix: str) -> None:
    """Raise DocumentError for binary data, and for text under the suffix of a binary format."""
    has_nul = b"\x00" in data and not data.startswith(tuple(BOM_ENCODINGS))
    kinds = [kind for signature, kind in BINARY_SIGNATURES if data.startswith(signature)]
    kinds += ["binary data (it holds NUL bytes)"] * has_nul
    if kinds:
        contradiction = f", not a {suffix} file" if suffix in READERS else ""
        raise document_error(name, f"this is {kinds[0]}{contradiction}", "save it as PDF, HTML, Markdown or UTF-8 text")
    if suffix in BINARY_READERS:
        cause = f"not a {suffix} file: it is of another kind, or lost its beginning"
        raise document_error(name, cause, "rename it, or fetch the file again")

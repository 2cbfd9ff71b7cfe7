"""The list of all readers, and the choice among them: by content first, by suffix second."""

import codecs
import re
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import PurePath

from specprefill_cli.documents import epub, foreign, html, mail, office, pdf, recognition, text, xlsx
from specprefill_cli.documents.document import Document, join_pages
from specprefill_cli.documents.encoding import BOM_ENCODINGS
from specprefill_cli.documents.reader import LIMITS, Abandoned, Limits, Reader, SourceFile, run_with_deadline
from specprefill_cli.errors import DocumentError, document_error, first_line, one_line

# The PDF standard allows up to 1024 bytes of other data before the header.
HEADER_BYTES = 1024
ZIP_SIGNATURE = b"PK\x03\x04"
# Only signatures that never start a plain text; most other binary files hold NUL bytes.
BINARY_SIGNATURES = (
    (foreign.OLD_OFFICE, "an old or encrypted Microsoft Office file"),
    (b"%!PS", "a PostScript file"),
    (ZIP_SIGNATURE, "a ZIP archive"),
)
# The first entries of an archive and the list of entries at its end tell the format; a damaged file may lack the list.
ARCHIVE_START_BYTES, ARCHIVE_END_BYTES = 4096, 2**16
OFFICE_ENTRIES = (
    (b"META-INF/container.xml", epub.pages),
    (b"application/epub+zip", epub.pages),
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
    ".epub": epub.pages,
    **dict.fromkeys(foreign.SUFFIXES, foreign.pages),
}
READERS: Mapping[str, Reader] = {
    **BINARY_READERS,
    **dict.fromkeys((".md", ".markdown"), text.markdown_pages),
    **dict.fromkeys((".html", ".htm", ".xhtml"), html.pages),
    **dict.fromkeys((".txt", ".text", ".rst"), text.text_pages),
    **dict.fromkeys((".csv", ".tsv"), text.csv_pages),
    **dict.fromkeys((".eml", ".mht", ".mhtml"), mail.pages),
}
KNOWN_SUFFIXES = tuple(READERS)


def is_pdf(data: bytes) -> bool:
    """Whether `data` is a PDF: it starts with the header, or has the header in its first KiB and a PDF's trailer.

    A text about PDF files may mention the header in its first lines, but has no trailer.
    """
    header = data[:HEADER_BYTES]
    return header.startswith(b"%PDF-") or (b"%PDF-" in header and b"startxref" in data)


def is_html(data: bytes) -> bool:
    """Whether `data` starts with a doctype or an html element."""
    return HTML_START.match(data[:HEADER_BYTES].removeprefix(codecs.BOM_UTF8)) is not None


def binary_format(data: bytes) -> str | None:
    """Name the format of binary data; None for text in any encoding."""
    has_nul = b"\x00" in data and not data.startswith(tuple(BOM_ENCODINGS))
    named = (format_name for signature, format_name in BINARY_SIGNATURES if data.startswith(signature))
    return next(named, "binary data (it holds NUL bytes)" if has_nul else None)


def office_reader(data: bytes) -> Reader | None:
    """The reader of an office file; None for anything else."""
    if not data.startswith(ZIP_SIGNATURE):
        return None
    entries = data[:ARCHIVE_START_BYTES] + data[-ARCHIVE_END_BYTES:]
    # The first entry counts: a presentation may hold a Word document.
    readers = {entries.find(name): reader for name, reader in OFFICE_ENTRIES if name in entries}
    return readers[min(readers)] if readers else None


def read_document(
    data: bytes, name: str, limits: Limits = LIMITS, step: Callable[[str], None] = lambda _text: None
) -> Document:
    """Read a document with the reader that fits its content or, failing that, the suffix of `name`.

    step: called with the progress, page by page

    Raises only DocumentError, for a file that is empty, too large, binary, damaged, or slow to read.
    """
    if not data:
        raise document_error(name, "the file is empty", "give a file with text in it")
    if len(data) > limits.max_bytes:
        raise document_error(name, f"larger than {limits.max_bytes:,} bytes", "split it into smaller files")
    file = SourceFile(data, name, limits, step=step, read_attached=read_file)
    try:
        run_with_deadline(lambda: read_file(file), file.stop, limits.max_seconds, lambda: file.excused_seconds)
    except TimeoutError:
        cause = f"reading took longer than {limits.max_seconds:g} s{file.progress}"
        raise document_error(name, cause, "split it, save it as text, or print it to a new PDF") from None
    joined, ranges = join_pages(file.texts)
    if not joined.strip():
        raise document_error(name, "it holds no text", "give a file with text in it")
    return Document(name, joined, ranges, tuple(map(one_line, file.warnings)))


def read_file(file: SourceFile) -> None:
    """Read the pages of a file with the reader that fits. Raises DocumentError, and Abandoned once it should stop."""
    try:
        with closing(choose_reader(file.data, file.name)(file)) as texts:
            for page_text in texts:
                file.add_page(page_text)
    except (Abandoned, DocumentError):
        raise
    except Exception as error:
        # No parser documents all its errors on damaged files.
        raise file.error(
            f"the file is damaged or of another kind ({first_line(error)})", "open it and save it again"
        ) from error


def choose_reader(data: bytes, name: str) -> Reader:
    """Choose the reader for `data`; a suffix never overrules the content. Raises DocumentError if no reader fits."""
    reader = office_reader(data)
    if reader is not None:
        return reader
    if foreign.foreign_type(data):
        return foreign.pages
    if is_pdf(data):
        return pdf.pages
    suffix = PurePath(name).suffix.lower()
    if suffix in recognition.SUFFIXES and data.startswith(recognition.SIGNATURES):
        return recognition.pages
    binary_name = binary_format(data)
    if binary_name:
        contradiction = f", not a {suffix} file" if suffix in READERS else ""
        cause = f"this is {binary_name}{contradiction}"
        raise document_error(name, cause, "save it as PDF, HTML, Markdown or UTF-8 text")
    if suffix in BINARY_READERS:
        cause = f"not a {suffix} file: it is of another kind, or lost its beginning"
        raise document_error(name, cause, "rename it, or fetch the file again")
    if suffix not in READERS and MAIL_START.match(data[:HEADER_BYTES]):
        return mail.pages
    return READERS.get(suffix) or (html.pages if is_html(data) else text.text_pages)

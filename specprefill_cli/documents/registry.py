"""The one list of readers, and the choice among them: content first, suffix second."""

import codecs
import re
from collections.abc import Callable
from contextlib import closing
from io import BytesIO
from pathlib import PurePath
from zipfile import BadZipFile, ZipFile

from specprefill_cli.documents import docx, epub, html, pdf, pptx, text, xlsx
from specprefill_cli.documents.document import Document, join_pages
from specprefill_cli.documents.reader import FormatReader, Limits, SourceFile, run_with_deadline
from specprefill_cli.errors import DocumentError, document_error, first_line, one_line

# The PDF standard lets up to 1024 bytes of other data stand before the header.
HEADER_BYTES = 1024

TEXT_BOMS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)

# Only signatures that no plain text starts with; most other binary files hold NUL bytes.
BINARY_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old or encrypted Microsoft Office file"),
    (b"{\\rtf", "an RTF file"),
    (b"%!PS", "a PostScript file"),
)
ZIP_SIGNATURE = b"PK\x03\x04"
# Where the parts of an office format lie in its archive, and the suffix of the format.
OFFICE_FOLDERS = {"word/": ".docx", "ppt/": ".pptx", "xl/": ".xlsx", "META-INF/container.xml": ".epub"}
# The archive's first entries name the format even where its end, with the list of entries, is lost.
ARCHIVE_HEADER_BYTES = 4096

_HTML_START = re.compile(rb"\s*(?:<\?xml[^>]{0,200}>\s*)?(?:<!--[^>]{0,500}-->\s*)?<(?:!doctype\s+html|html)\b", re.I)
OFFICE_READERS = (docx.READER, pptx.READER, xlsx.READER, epub.READER)
READERS = (pdf.READER, text.MARKDOWN, html.READER, text.TEXT, text.CSV, *OFFICE_READERS)

KNOWN_SUFFIXES: tuple[str, ...] = tuple(suffix for reader in READERS for suffix in reader.suffixes)


def is_pdf(data: bytes) -> bool:
    """Whether `data` is a PDF: its header at the very start, or in the first KiB of a file with a PDF's trailer.

    A text about PDF files may mention the header in its first lines, but has no trailer.
    """
    header = data[:HEADER_BYTES]
    return header.startswith(b"%PDF-") or (b"%PDF-" in header and b"startxref" in data)


def is_html(data: bytes) -> bool:
    """Whether `data` starts like an HTML page (doctype or html element)."""
    return _HTML_START.match(data[:HEADER_BYTES].removeprefix(codecs.BOM_UTF8)) is not None


def binary_format(data: bytes) -> str | None:
    """Name the kind of binary file that `data` is; None for text in any encoding."""
    for signature, kind in BINARY_SIGNATURES:
        if data.startswith(signature):
            return kind
    if data.startswith(ZIP_SIGNATURE):
        return "an OpenDocument file" if b"vnd.oasis.opendocument" in data[:ARCHIVE_HEADER_BYTES] else "a ZIP archive"
    if b"\x00" in data and not data.startswith(TEXT_BOMS):
        return "binary data (it holds NUL bytes)"
    return None


def office_suffix(data: bytes) -> str | None:
    """Return the suffix of the office format that `data` is in; None for anything else."""
    if not data.startswith(ZIP_SIGNATURE):
        return None
    header = data[:ARCHIVE_HEADER_BYTES].decode("latin-1")
    if "application/epub+zip" in header:
        return ".epub"
    try:
        with ZipFile(BytesIO(data)) as archive:
            names = archive.namelist()
    except (BadZipFile, ValueError, NotImplementedError):
        return next((suffix for folder, suffix in OFFICE_FOLDERS.items() if folder in header), None)
    return next(
        (OFFICE_FOLDERS[folder] for folder in OFFICE_FOLDERS for name in names if name.startswith(folder)), None
    )


def read_document(
    data: bytes, name: str, limits: Limits | None = None, step: Callable[[str], None] = lambda _text: None
) -> Document:
    """Read a document with the reader that its content asks for, or else the suffix of `name`.

    step: shows how far the reader came, page by page

    Raises DocumentError, and nothing else, for a file that is empty, too large, binary, damaged, or slow to read.
    """
    limits = limits or Limits()
    if not data:
        raise document_error(name, "the file is empty", "give a file with text in it")
    if len(data) > limits.max_bytes:
        raise document_error(name, f"larger than {limits.max_bytes:,} bytes", "split it into smaller files")
    file = SourceFile(data, name, limits, step=step)
    try:
        reader = choose_reader(data, name)
        run_with_deadline(lambda: read_pages(reader, file), file.stop, limits.max_seconds)
    except DocumentError:
        raise
    except TimeoutError:
        cause = f"reading took longer than {limits.max_seconds:g} s{file.progress}"
        raise document_error(name, cause, "split it, save it as text, or print it to a new PDF") from None
    except Exception as error:
        # No parser documents all that it raises on damaged files.
        cause = f"the file is damaged or of another kind ({first_line(error)})"
        raise document_error(name, cause, "open it and save it again") from error
    joined, ranges = join_pages(file.texts)
    if not joined.strip():
        raise document_error(name, "it holds no text", "give a file with text in it")
    return Document(name, joined, ranges, reader.media_type, tuple(map(one_line, file.warnings)))


def read_pages(reader: FormatReader, file: SourceFile) -> None:
    """Read the pages into `file`, which also tells how far a reader came that is out of time."""
    with closing(reader.pages(file)) as texts:
        for page_text in texts:
            file.add_page(page_text)


def choose_reader(data: bytes, name: str) -> FormatReader:
    """Choose the reader for `data`; a suffix never overrules the content. Raises DocumentError when there is none."""
    office = office_suffix(data)
    if office:
        return next(reader for reader in OFFICE_READERS if office in reader.suffixes)
    if is_pdf(data):
        return pdf.READER
    suffix = PurePath(name).suffix.lower()
    claimed = next((reader for reader in READERS if suffix in reader.suffixes), None)
    binary = binary_format(data)
    if binary:
        also = f", not a {suffix} file" if claimed else ""
        raise document_error(name, f"this is {binary}{also}", "save it as PDF, HTML, Markdown or UTF-8 text")
    if claimed is pdf.READER or claimed in OFFICE_READERS:
        actual = "an HTML page" if is_html(data) else "plain text or a file that lost its beginning"
        raise document_error(name, f"not a {suffix} file: this is {actual}", "rename it, or fetch the file again")
    return claimed or (html.READER if is_html(data) else text.TEXT)

"""The one list of readers, and the choice among them: content first, suffix second."""

from pathlib import PurePath

from specprefill_cli.documents import csv, docx, epub, html, markdown, pdf, pptx, text, xlsx
from specprefill_cli.documents.document import Document
from specprefill_cli.documents.errors import DocumentError, damaged, document_error
from specprefill_cli.documents.reader import FormatReader, Limits
from specprefill_cli.documents.signatures import binary_format, is_html, is_pdf, office_suffix

OFFICE_READERS = (docx.READER, pptx.READER, xlsx.READER, epub.READER)
READERS = (pdf.READER, markdown.READER, html.READER, text.READER, csv.READER, *OFFICE_READERS)

KNOWN_SUFFIXES: tuple[str, ...] = tuple(suffix for reader in READERS for suffix in reader.suffixes)


def read_document(data: bytes, name: str, limits: Limits | None = None) -> Document:
    """Read a document with the reader that its content asks for, or else the suffix of `name`.

    Raises DocumentError, and nothing else, for a file that is empty, too large, binary, damaged, or slow to read.
    """
    limits = limits or Limits()
    if not data:
        raise document_error(name, "the file is empty", "give a file with text in it")
    if len(data) > limits.max_bytes:
        raise document_error(name, f"larger than {limits.max_bytes:,} bytes", "split it into smaller files")
    try:
        document = choose_reader(data, name).read(data, name, limits)
    except DocumentError:
        raise
    except TimeoutError:
        cause = f"reading took longer than {limits.max_seconds:g} s"
        raise document_error(name, cause, "split it or save it as text") from None
    except Exception as error:
        # No parser documents all that it raises on damaged files.
        raise damaged(name, error) from error
    if len(document.text) > limits.max_characters:
        cause = f"{len(document.text):,} characters of text, the limit is {limits.max_characters:,}"
        raise document_error(name, cause, "split it into smaller files")
    if not document.text.strip():
        raise document_error(name, "it holds no text", "give a file with text in it")
    return document


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
    return claimed or (html.READER if is_html(data) else text.READER)

"""The one list of readers, and the choice among them: content first, suffix second."""

from pathlib import PurePath

from specprefill_cli.documents import csv, docx, epub, html, markdown, pdf, pptx, text, xlsx
from specprefill_cli.documents.document import Document
from specprefill_cli.documents.errors import document_error
from specprefill_cli.documents.reader import Limits, Reader
from specprefill_cli.documents.signatures import binary_format, is_html, is_pdf, office_suffix

OFFICE_READERS: tuple[Reader, ...] = (docx.READER, pptx.READER, xlsx.READER, epub.READER)
READERS: tuple[Reader, ...] = (pdf.READER, markdown.READER, html.READER, text.READER, csv.READER, *OFFICE_READERS)

KNOWN_SUFFIXES: tuple[str, ...] = tuple(suffix for reader in READERS for suffix in reader.suffixes)


def read_document(data: bytes, name: str, limits: Limits | None = None) -> Document:
    """The document in ``data``, read by the reader its content (then the suffix of ``name``) asks for.

    Raises DocumentError: empty, too large, a binary format, or whatever the reader finds wrong.
    """
    limits = limits or Limits()
    if not data:
        raise document_error(name, "the file is empty", "give a file with text in it")
    if len(data) > limits.max_bytes:
        raise document_error(name, f"larger than {limits.max_bytes:,} bytes", "split it into smaller files")
    document = choose_reader(data, name).read(data, name, limits)
    if len(document.text) > limits.max_characters:
        raise document_error(
            name,
            f"{len(document.text):,} characters of text, the limit is {limits.max_characters:,}",
            "split it into smaller files",
        )
    if not document.text.strip():
        raise document_error(name, "it holds no text", "give a file with text in it")
    return document


def choose_reader(data: bytes, name: str) -> Reader:
    """The reader for ``data``; a suffix never overrules what the bytes say. Raises DocumentError for no reader."""
    office = office_suffix(data)
    if office:
        return next(reader for reader in OFFICE_READERS if office in reader.suffixes)
    if is_pdf(data):
        return pdf.READER
    suffix = PurePath(name).suffix.lower()
    claimed = next((reader for reader in READERS if suffix in reader.suffixes), None)
    found = binary_format(data)
    if found:
        also = f", not a {suffix} file" if claimed else ""
        raise document_error(name, f"this is {found}{also}", "save it as PDF, HTML, Markdown or UTF-8 text")
    if claimed in OFFICE_READERS:
        really = "an HTML page" if is_html(data) else "plain text or a file that lost its beginning"
        raise document_error(name, f"not a {suffix} file: this is {really}", "rename it, or fetch the file again")
    if claimed is pdf.READER:
        really = "an HTML page" if is_html(data) else "plain text or a PDF that lost its beginning"
        raise document_error(
            name, f"not a PDF (no %PDF- in the first KiB): this is {really}", "rename it, or fetch the PDF again"
        )
    return claimed or (html.READER if is_html(data) else text.READER)

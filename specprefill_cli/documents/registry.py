"""The one list of readers, and the choice among them: content first, suffix second."""

from collections.abc import Callable
from contextlib import closing
from pathlib import PurePath

from specprefill_cli.documents import csv, docx, epub, html, pdf, pptx, text, xlsx
from specprefill_cli.documents.deadline import run_with_deadline
from specprefill_cli.documents.document import Document, join_pages
from specprefill_cli.documents.errors import DocumentError, document_error, one_line
from specprefill_cli.documents.reader import FormatReader, Limits, SourceFile
from specprefill_cli.documents.signatures import binary_format, is_html, is_pdf, office_suffix
from specprefill_cli.errors import first_line

OFFICE_READERS = (docx.READER, pptx.READER, xlsx.READER, epub.READER)
READERS = (pdf.READER, text.MARKDOWN, html.READER, text.TEXT, csv.READER, *OFFICE_READERS)

KNOWN_SUFFIXES: tuple[str, ...] = tuple(suffix for reader in READERS for suffix in reader.suffixes)


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

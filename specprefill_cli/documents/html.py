"""HTML pages: the text that a reader of the page would see."""

from specprefill_cli.documents.deadline import run_with_deadline
from specprefill_cli.documents.document import Document, one_page_document
from specprefill_cli.documents.encoding import declared_encoding, decode
from specprefill_cli.documents.html_text import visible_text
from specprefill_cli.documents.reader import FormatReader, Limits


def read_html(data: bytes, name: str, limits: Limits) -> Document:
    """Read the title, then the visible text.

    Raises DocumentError: the encoding is not recognised. Raises TimeoutError, and AssertionError for rejected markup.
    """
    markup, warnings = decode(data, name, declared_encoding(data))
    parts = run_with_deadline(lambda stop: visible_text(markup, stop), limits.max_seconds)
    return one_page_document(name, "\n\n".join(filter(None, parts)), READER.media_type, warnings)


READER = FormatReader((".html", ".htm", ".xhtml"), "text/html", read_html)

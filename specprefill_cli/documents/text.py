"""Plain text."""

from specprefill_cli.documents.cleaning import clean_characters, collapse_blank_lines
from specprefill_cli.documents.document import Document, one_page_document
from specprefill_cli.documents.encoding import decode
from specprefill_cli.documents.reader import FormatReader, Limits


def read_text(data: bytes, name: str, limits: Limits) -> Document:
    """Read text in UTF-8, UTF-16 or UTF-32 with a byte order mark, or a guessed encoding (with a warning).

    Line breaks stay: in a text file they may be code, verse or a list. Raises DocumentError: unknown encoding.
    """
    text, warnings = decode(data, name)
    return one_page_document(name, collapse_blank_lines(clean_characters(text)), READER.media_type, warnings)


READER = FormatReader((".txt", ".text", ".rst"), "text/plain", read_text)

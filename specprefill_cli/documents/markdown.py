"""Markdown, kept as it is."""

from specprefill_cli.documents.cleaning import normalise_line_ends
from specprefill_cli.documents.document import Document, one_page_document
from specprefill_cli.documents.encoding import decode
from specprefill_cli.documents.reader import FormatReader, Limits


def read_markdown(data: bytes, name: str, limits: Limits) -> Document:
    """Read Markdown source, front matter included: language models read it well. Raises DocumentError."""
    text, warnings = decode(data, name)
    return one_page_document(name, normalise_line_ends(text), READER.media_type, warnings)


READER = FormatReader((".md", ".markdown"), "text/markdown", read_markdown)

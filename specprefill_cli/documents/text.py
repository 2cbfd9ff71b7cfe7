"""Plain text, and Markdown as it is written."""

from specprefill_cli.documents.cleaning import clean_characters, collapse_blank_lines, normalise_line_ends
from specprefill_cli.documents.encoding import decode
from specprefill_cli.documents.reader import FormatReader, Pages, SourceFile


def text_pages(file: SourceFile) -> Pages:
    """Keep line breaks: in a text file they may be code, verse or a list."""
    yield collapse_blank_lines(clean_characters(decode(file)))


def markdown_pages(file: SourceFile) -> Pages:
    """Keep the source, front matter included: language models read it well."""
    yield normalise_line_ends(decode(file))


TEXT = FormatReader((".txt", ".text", ".rst"), "text/plain", text_pages)
MARKDOWN = FormatReader((".md", ".markdown"), "text/markdown", markdown_pages)

"""RTF, OpenDocument, and the formats of old Office programs: text through kreuzberg, an optional package."""

from specprefill_cli.documents.reader import Pages, SourceFile
from specprefill_cli.documents.text import labelled_tables
from specprefill_cli.errors import pip_command

OLD_OFFICE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
OPEN_DOCUMENT = "application/vnd.oasis.opendocument."
# The streams of old Office files: a message may hold the others.
STREAMS = {
    "__properties_version1.0": "application/vnd.ms-outlook",
    "PowerPoint Document": "application/vnd.ms-powerpoint",
    "WordDocument": "application/msword",
    "Workbook": "application/vnd.ms-excel",
}
SUFFIXES = (".rtf", ".odt", ".ods", ".odp", ".doc", ".xls", ".ppt", ".msg")


def foreign_type(data: bytes) -> str | None:
    """The media type of a file that kreuzberg reads; None for any other."""
    if data.startswith(b"{\\rtf"):
        return "application/rtf"
    if data.startswith(OLD_OFFICE):
        return next((kind for name, kind in STREAMS.items() if name.encode("utf-16-le") in data), None)
    kinds = (OPEN_DOCUMENT + kind for kind in ("text", "spreadsheet", "presentation"))
    return next((kind for kind in kinds if f"mimetype{kind}".encode() in data[:100]), None)


def pages(file: SourceFile) -> Pages:
    """Yield the text as Markdown, tables with the names of their columns. Raises DocumentError without the package."""
    try:
        from kreuzberg import ExtractionConfig, extract_bytes_sync
    except ImportError as error:
        remedy = f"install it with {pip_command('kreuzberg')}, or save the file as PDF, HTML, Markdown or UTF-8 text"
        raise file.error("reading this format needs another package", remedy) from error
    kind = foreign_type(file.data) or ""
    result = extract_bytes_sync(file.data, kind, config=ExtractionConfig(use_cache=False, output_format="markdown"))
    yield labelled_tables(result.content).strip()

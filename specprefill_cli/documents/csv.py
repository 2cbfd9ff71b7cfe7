"""CSV and TSV: rows as `a | b`, one page."""

from __future__ import annotations

import csv
import threading
from collections import Counter
from collections.abc import Iterator
from io import StringIO

from specprefill_cli.documents.archives import page_texts, row_text
from specprefill_cli.documents.document import Document, one_page_document
from specprefill_cli.documents.encoding import decode
from specprefill_cli.documents.errors import document_error
from specprefill_cli.documents.reader import FormatReader, Limits

# The comma last but for the bar: where numbers have decimal commas, it divides rows as evenly as the true delimiter.
DELIMITERS = "\t;,|"
# Rows by which the delimiter is judged.
SAMPLE_ROWS = 50


def read_csv(data: bytes, name: str, limits: Limits) -> Document:
    """Every row on one line. Raises DocumentError: the encoding is not recognised, or a field is out of all bounds."""
    text, warnings = decode(data, name)
    # The library's own limit of 131,072 characters is no sign of damage: a cell may hold a whole text.
    csv.field_size_limit(limits.max_characters)
    try:
        (body,) = page_texts([rows(text)], name, limits, threading.Event())
    except csv.Error as error:
        raise document_error(name, f"not a table with delimiters ({error})", "check its quotes") from error
    return one_page_document(name, body, READER.media_type, warnings)


def rows(text: str) -> Iterator[str]:
    delimiter = likely_delimiter(text)
    return filter(None, map(row_text, csv.reader(StringIO(text, newline=""), delimiter=delimiter)))


def likely_delimiter(text: str) -> str:
    """The delimiter that divides most of the first rows into the same number of cells, two or more; else a comma."""

    def agreement(delimiter: str) -> int:
        reader = csv.reader(StringIO(text, newline=""), delimiter=delimiter)
        widths = Counter(len(row) for row, _ in zip(reader, range(SAMPLE_ROWS), strict=False) if len(row) > 1)
        return max(widths.values(), default=0)

    best = max(DELIMITERS, key=agreement)
    return best if agreement(best) else ","


READER = FormatReader((".csv", ".tsv"), "text/csv", read_csv)

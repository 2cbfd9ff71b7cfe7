"""CSV and TSV: rows as `a | b`, one page."""

from __future__ import annotations

import csv
import threading
from collections import Counter
from collections.abc import Iterator
from io import StringIO
from itertools import islice

from specprefill_cli.documents.archives import page_texts, row_text
from specprefill_cli.documents.document import Document, one_page_document
from specprefill_cli.documents.encoding import decode
from specprefill_cli.documents.errors import document_error
from specprefill_cli.documents.reader import FormatReader, Limits

# Where two divide the rows equally well, the first wins: a comma may be the decimal mark of the numbers.
DELIMITERS = "\t;,|"
# Rows by which the delimiter is judged.
SAMPLE_ROWS = 50


def read_csv(data: bytes, name: str, limits: Limits) -> Document:
    """Read every row as one line. Raises DocumentError: unknown encoding, or a field longer than the limits allow."""
    text, warnings = decode(data, name)
    # The csv module's own limit of 131,072 characters is no sign of damage: a cell may hold a whole text.
    csv.field_size_limit(limits.max_characters)
    try:
        (body,) = page_texts([row_lines(text)], name, limits, threading.Event())
    except csv.Error as error:
        raise document_error(name, f"not a table with delimiters ({error})", "check its quotes") from error
    return one_page_document(name, body, READER.media_type, warnings)


def row_lines(text: str) -> Iterator[str]:
    """Yield the rows that are not empty."""
    return filter(None, map(row_text, parse(text, likely_delimiter(text))))


def likely_delimiter(text: str) -> str:
    """Return the delimiter that divides most of the first rows into the same number of cells, two or more; else `,`."""

    def agreement(delimiter: str) -> int:
        widths = Counter(len(row) for row in islice(parse(text, delimiter), SAMPLE_ROWS) if len(row) > 1)
        return max(widths.values(), default=0)

    best = max(DELIMITERS, key=agreement)
    return best if agreement(best) else ","


def parse(text: str, delimiter: str) -> Iterator[list[str]]:
    """Yield the cells of each row."""
    return csv.reader(StringIO(text, newline=""), delimiter=delimiter)


READER = FormatReader((".csv", ".tsv"), "text/csv", read_csv)

"""Plain text, Markdown source, and CSV or TSV with rows as `a | b`; each file is a single page."""

import csv
from collections import Counter
from io import StringIO
from itertools import islice

from specprefill_cli.documents.cleaning import clean_text, normalise_line_ends, row_text
from specprefill_cli.documents.encoding import decode_text
from specprefill_cli.documents.reader import Pages, SourceFile

# If two delimiters divide the rows equally well, the first wins: a comma may be a decimal mark.
DELIMITERS = "\t;,|"
# Number of leading rows that decide the delimiter.
SAMPLE_ROWS = 50


def text_pages(file: SourceFile) -> Pages:
    """Keep line breaks: in a text file they may be code, verse or a list."""
    yield clean_text(decode_text(file))


def markdown_pages(file: SourceFile) -> Pages:
    """Keep the source, front matter included: language models read it well."""
    yield normalise_line_ends(decode_text(file))


def csv_pages(file: SourceFile) -> Pages:
    """Read each non-empty row as a line. Raises DocumentError for a field longer than the limits allow."""
    text = decode_text(file)
    # Raise the csv module's limit of 131,072 characters: a cell may hold a whole text.
    csv.field_size_limit(file.limits.max_characters)
    try:
        rows = csv.reader(StringIO(text, newline=""), delimiter=likely_delimiter(text))
        yield file.page_text(filter(None, map(row_text, rows)))
    except csv.Error as error:
        raise file.error(f"not a table with delimiters ({error})", "check its quotes") from error


def likely_delimiter(text: str) -> str:
    """Return the delimiter that divides most of the first rows into the same number of cells (two or more), or `,`."""

    def agreement(delimiter: str) -> int:
        rows = islice(csv.reader(StringIO(text, newline=""), delimiter=delimiter), SAMPLE_ROWS)
        return max(Counter(len(row) for row in rows if len(row) > 1).values(), default=0)

    best = max(DELIMITERS, key=agreement)
    return best if agreement(best) else ","

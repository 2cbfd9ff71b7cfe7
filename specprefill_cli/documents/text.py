"""Plain text, Markdown source, and CSV or TSV with rows as `a | b`; each file is a single page."""

import csv
import re
from collections import Counter
from collections.abc import Iterator
from io import StringIO
from itertools import islice

from specprefill_cli.documents.cleaning import clean_text, normalise_line_ends
from specprefill_cli.documents.encoding import decode_text
from specprefill_cli.documents.reader import Pages, SourceFile
from specprefill_cli.documents.tables import named_cells, table_lines

# If two delimiters divide the rows equally well, the first wins: a comma may be a decimal mark.
DELIMITERS = "\t;,|"
TABLE_RULE = re.compile(r"\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)+\|?\s*")
CELL_BAR = re.compile(r"(?<!\\)\|")
NUMBER_COMMA = re.compile(r"(?<=\d),(?=\d)")
# Number of leading rows that decide the delimiter.
SAMPLE_ROWS = 10_000


def text_pages(file: SourceFile) -> Pages:
    """Keep line breaks: in a text file they may be code, verse or a list."""
    yield clean_text(decode_text(file))


def markdown_pages(file: SourceFile) -> Pages:
    """Keep the source, front matter included: language models read it well; its tables get the names of their columns."""
    yield labelled_tables(normalise_line_ends(decode_text(file)))


def labelled_tables(text: str) -> str:
    """Write the names of the columns into the rows of Markdown's tables: `| a: 1 | b: 2 |`."""
    names: list[str] = []
    in_code = False
    lines = text.split("\n")
    for index, line in enumerate(lines):
        if line.lstrip().startswith(("```", "~~~")):
            in_code = not in_code
        if in_code:
            names = []
        elif TABLE_RULE.fullmatch(line) and index and "|" in lines[index - 1]:
            names = markdown_cells(lines[index - 1])
        elif names and "|" in line:
            lines[index] = f"| {' | '.join(named_cells(names, markdown_cells(line)))} |"
        else:
            names = []
    return "\n".join(lines)


def markdown_cells(line: str) -> list[str]:
    """The cells of a row of a Markdown table."""
    return [cell.strip() for cell in CELL_BAR.split(line.strip().removeprefix("|").removesuffix("|"))]


def csv_pages(file: SourceFile) -> Pages:
    """Read each non-empty row as a line. Raises DocumentError for a field longer than the limits allow."""
    text = decode_text(file)
    # Raise the csv module's limit of 131,072 characters: a cell may hold a whole text.
    csv.field_size_limit(file.limits.max_characters)
    try:
        delimiter = likely_delimiter(text)
        rows = (row for row in closed_rows(file, text, delimiter) if any(cell.strip() for cell in row))
        yield file.page_text(table_lines(rows, has_names=True))
    except csv.Error as error:
        raise file.error(f"not a table with delimiters ({error})", "check its quotes") from error


def closed_rows(file: SourceFile, text: str, delimiter: str) -> Iterator[list[str]]:
    """Yield the rows of a table. A quote that nothing closes is a character of its line, and adds a warning."""
    lines = StringIO(text, newline="").readlines()
    position, unclosed = 0, 0

    def remaining() -> Iterator[str]:
        nonlocal position
        while position < len(lines):
            position += 1
            yield lines[position - 1]

    rows = csv.reader(remaining(), delimiter=delimiter, skipinitialspace=True)
    while position < len(lines):
        start, row = position, next(rows)
        if position - start > 1:
            try:
                list(csv.reader(lines[start:position], delimiter=delimiter, skipinitialspace=True, strict=True))
            except csv.Error:
                unclosed = unclosed or start + 1
                row = next(csv.reader(lines[start : start + 1], delimiter=delimiter, quoting=csv.QUOTE_NONE))
                position, rows = start + 1, csv.reader(remaining(), delimiter=delimiter, skipinitialspace=True)
        yield row
    if unclosed:
        file.warnings.append(f"line {unclosed}: a quote is not closed, and so counts as text; check the file's quotes")


def likely_delimiter(text: str) -> str:
    """Return the delimiter that divides the largest share of the rows into the same number of cells, and the most; or `,`.

    A comma between two digits may belong to a number: it counts only where no other delimiter divides as many rows.
    """

    def agreement(delimiter: str) -> tuple[float, int]:
        lines = StringIO(NUMBER_COMMA.sub("", text) if delimiter == "," else text, newline="")
        sample = islice(csv.reader(lines, delimiter=delimiter, skipinitialspace=True), SAMPLE_ROWS)
        counts = Counter(len(row) for row in sample if row)
        rows, cells = max(((rows, cells) for cells, rows in counts.items() if cells > 1), default=(0, 0))
        return rows / max(counts.total(), 1), cells

    best = max(DELIMITERS, key=agreement)
    return best if agreement(best)[1] else ","

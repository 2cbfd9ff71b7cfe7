"""Plain text, Markdown source, and CSV or TSV with rows as `a | b`; each file is a single page."""

import codecs
import csv
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from io import StringIO
from itertools import islice, takewhile

from specprefill_cli.documents.cleaning import clean_text, normalise_line_ends
from specprefill_cli.documents.headers import is_header
from specprefill_cli.documents.reader import LIMITS, Pages, SourceFile
from specprefill_cli.documents.tables import named_cells, table_lines

MARKDOWN_SUFFIXES, JSON_SUFFIXES = (".md", ".markdown"), (".json", ".jsonl", ".ipynb")
# A picture in a notebook or in Markdown.
EMBEDDED = re.compile(r'("image/[\w+.-]+": *"|data:image/[\w+.-]+;base64,)[A-Za-z0-9+/]{1000,}={0,2}(?:\\n)?')
# A letter beyond ASCII in JSON; a backslash that is escaped itself begins none.
ESCAPE = re.compile(r"\\\\|\\u(?!00[0-7])([0-9a-fA-F]{4})")
# If two delimiters divide the rows equally well, the first wins: a comma may be a decimal mark.
DELIMITERS = "\t;,|"
TABLE_RULE = re.compile(r"\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)+\|?\s*")
CELL_BAR = re.compile(r"(?<!\\)\|")
NUMBER_COMMA = re.compile(r"(?<=\d),(?=\d[\d.,]{0,30}(?:[;\t|]|$))", re.MULTILINE)
# Number of leading rows that decide the delimiter.
SAMPLE_ROWS = 10_000


def text_pages(file: SourceFile) -> Pages:
    """Keep line breaks, and the source of Markdown, in which tables get the names of their columns."""
    is_markdown, text = file.name.lower().endswith(MARKDOWN_SUFFIXES), decode_text(file)
    if text.startswith(("BEGIN:VCALENDAR", "BEGIN:VCARD")):
        # Lines of calendars are folded anywhere, also inside words.
        text = re.sub(r"\r?\n[ \t]", "", text)
    text = EMBEDDED.sub(r"\1", text)
    if file.name.lower().endswith(JSON_SUFFIXES):
        text = ESCAPE.sub(lambda match: chr(int(match[1], 16)) if match[1] else match[0], text)
    yield labelled_tables(normalise_line_ends(text)) if is_markdown else clean_text(text)


def labelled_tables(text: str, *, is_sure: bool = True) -> str:
    """Write the names of the columns into the rows of Markdown's tables, `| a: 1 | b: 2 |`; is_sure: each table has some."""
    names: list[str] = []
    in_code = False
    lines = text.split("\n")
    for index, line in enumerate(lines):
        in_code ^= line.lstrip().startswith(("```", "~~~"))
        if not in_code and index and TABLE_RULE.fullmatch(line) and "|" in lines[index - 1]:
            names = markdown_cells(lines[index - 1])
            rows = takewhile(lambda row: "|" in row, lines[index + 1 : index + SAMPLE_ROWS])
            if not is_sure and not is_header(names, [*map(markdown_cells, rows)], has_names=False):
                names = []
        elif not in_code and names and "|" in line:
            lines[index] = f"| {' | '.join(named_cells(names, markdown_cells(line)))} |"
        else:
            names = []
    return "\n".join(lines)


def markdown_cells(line: str) -> list[str]:
    """The cells of a row of a Markdown table."""
    return [cell.strip() for cell in CELL_BAR.split(line.strip().removeprefix("|").removesuffix("|"))]


def csv_pages(file: SourceFile) -> Pages:
    """Read each non-empty row as a line. Raises DocumentError for a field longer than the limits allow."""
    # Excel names the delimiter in a line of its own.
    text = re.sub(r"\Asep=.\r?\n", "", decode_text(file))
    # Raise the csv module's limit of 131,072 characters: a cell may hold a whole text.
    csv.field_size_limit(LIMITS.max_characters)
    try:
        delimiter = likely_delimiter(text)
        rows = (row for row in closed_rows(file, text, delimiter) if any(cell.strip() for cell in row))
        yield file.page_text(table_lines(rows, has_names=True))
    except csv.Error as error:
        raise file.error(f"not a table with delimiters ({error})", "check its quotes") from error


def closed_rows(file: SourceFile, text: str, delimiter: str) -> Iterator[list[str]]:
    """Yield the rows. A quote that does not close a cell is a character of its line, and adds a warning."""
    lines, start, unclosed = StringIO(text, newline="").readlines(), 0, 0
    while start < len(lines):
        rows = csv.reader(
            map(lines.__getitem__, range(start, len(lines))), delimiter=delimiter, skipinitialspace=True, strict=True
        )
        read = 0
        try:
            for row in rows:
                yield row
                read = rows.line_num
            break
        except csv.Error:
            start += read
            unclosed = unclosed or start + 1
            yield next(csv.reader(lines[start : start + 1], delimiter=delimiter, quoting=csv.QUOTE_NONE))
            start += 1
    if unclosed:
        file.warnings.append(f"line {unclosed}: a quote is not closed, and so counts as text; check the file's quotes")


def likely_delimiter(text: str) -> str:
    """The delimiter that divides most rows into the same number of cells, and the most of these; a tabulator if none does."""

    def agreement(delimiter: str) -> tuple[float, int]:
        # A comma between two digits may belong to a number.
        lines = StringIO(NUMBER_COMMA.sub("", text) if delimiter == "," else text, newline="")
        sample = islice(csv.reader(lines, delimiter=delimiter, skipinitialspace=True), SAMPLE_ROWS)
        counts = Counter(len(row) for row in sample if row)
        return max(((rows / counts.total(), cells) for cells, rows in counts.items() if cells > 1), default=(0.0, 0))

    return max(DELIMITERS, key=agreement)


# The UTF-32 marks come first: the little-endian mark starts with the mark of UTF-16.
BOM_ENCODINGS = {
    codecs.BOM_UTF8: "utf-8-sig",
    **dict.fromkeys((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE), "utf-32"),
    **dict.fromkeys((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), "utf-16"),
}
# An XML or HTML file declares its encoding near its beginning.
DECLARATION_BYTES = 4096
DECLARATION = re.compile(
    rb"""<(?:\?xml|meta)[^>]{0,400}?[\s;"'](?:encoding|charset)\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE
)
# Python codecs that are not file encodings (some take quadratic time): never decode with these.
NOT_FILE_ENCODINGS = frozenset({"idna", "punycode", "unicode-escape", "raw-unicode-escape"})
# The web's most common single-byte encoding: it wins if the guess cannot tell it from similar encodings.
COMMON_ENCODING = "cp1252"
# The WHATWG Encoding Standard, and so every browser, reads these encodings as larger ones.
SUPERSETS = {"iso8859-1": COMMON_ENCODING, "iso8859-9": "cp1254", "iso8859-11": "cp874", "tis-620": "cp874",
             "shift_jis": "cp932", "gb2312": "gb18030", "gbk": "gb18030", "euc_kr": "cp949", "big5": "big5hkscs"}  # fmt: skip
# For short texts charset_normalizer prefers those of old systems, which are rare today.
LIVING_ENCODINGS = (
    "cp1252 cp1250 cp1251 cp1253 cp1254 cp1255 cp1256 cp1257 iso8859_2 koi8_r cp932 euc_jp gb18030 big5 cp949"
).split()


def decode_text(file: SourceFile, is_markup: bool = False) -> str:
    """Decode a text; damage or a guess adds a warning. Raises DocumentError if no encoding fits."""
    for mark, encoding in BOM_ENCODINGS.items():
        if file.data.startswith(mark):
            return decode_with_replacement(file, encoding)
    with suppress(UnicodeDecodeError):
        return file.data.decode("utf-8")
    match = DECLARATION.search(file.data[:DECLARATION_BYTES]) if is_markup else None
    declared = match[1].decode("ascii", "replace").lower() if match else ""
    with suppress(LookupError, ValueError):
        return decode_as(file.data, declared)
    text = file.data.decode("utf-8", errors="replace")
    damaged_places = text.count("\ufffd") - file.data.count("\ufffd".encode())
    valid_characters = sum(map(len, re.findall(r"[^\x00-\x7f\ufffd]+", text)))
    # Text in another encoding holds almost no valid characters of several bytes.
    if valid_characters >= damaged_places * (1 if declared in ("utf-8", "utf8") else 4):
        return decode_with_replacement(file, "utf-8")
    return decode_guessed(file)


def decode_as(data: bytes, name: str) -> str:
    """Decode with a named encoding. Raises LookupError if it is none of text, and ValueError if the bytes are in another."""
    encoding = codecs.lookup(name.lower().removeprefix("x-").removesuffix("-i").replace("windows-", "cp")).name
    if encoding.replace("_", "-") in NOT_FILE_ENCODINGS:
        raise LookupError(name)
    encoding = SUPERSETS.get(encoding, encoding)
    if encoding == "iso2022_jp":
        # Mail says that it switches to JIS X 0208, also where it has characters that only JIS X 0213 has.
        data, encoding = re.sub(rb"\x1b\$[@B]", b"\x1b$(O", data), "iso2022_jp_3"
    is_lenient = encoding in (COMMON_ENCODING, "iso2022_jp_3")
    return data.decode(encoding, errors="replace" if is_lenient else "strict")


def decode_with_replacement(file: SourceFile, encoding: str) -> str:
    """Decode a file; replace damaged places by U+FFFD and add a warning."""
    try:
        return file.data.decode(encoding)
    except UnicodeDecodeError as error:
        label = encoding.removesuffix("-sig").upper()
        file.warnings.append(f"damaged {label}: {error.reason} at byte {error.start}, replaced by U+FFFD")
        return file.data.decode(encoding, errors="replace")


def decode_guessed(file: SourceFile) -> str:
    """Decode a file with the best-fitting encoding and add a warning. Raises DocumentError if no encoding fits."""
    from charset_normalizer import from_bytes

    matches = from_bytes(file.data, cp_isolation=LIVING_ENCODINGS)
    best = matches.best()
    if best is None:
        raise file.error("the character encoding is not recognised", "convert it first (for example: iconv -t utf-8)")
    common = (match for match in matches if COMMON_ENCODING in match.could_be_from_charset)
    is_common = any(match.chaos <= best.chaos and match.coherence >= best.coherence for match in common)
    encoding = COMMON_ENCODING if is_common else best.encoding
    file.warnings.append(f"not UTF-8: read as {encoding}, a guess; convert it to UTF-8 if characters look wrong")
    return file.data.decode(encoding, errors="replace")

"""XLSX: the sheets of a workbook as pages, their rows as `a | b`; and the charts of Office files, their values as shown."""

import re
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime, time, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from io import BytesIO
from itertools import chain, groupby
from math import isfinite
from typing import Any
from xml.etree.ElementTree import Element

from specprefill_cli.documents.containers import open_archive
from specprefill_cli.documents.headers import is_amount
from specprefill_cli.documents.reader import Pages, SourceFile
from specprefill_cli.documents.tables import table_lines

# A formula without a stored value; in a text cell (`t="str"`) an empty value is one.
UNCALCULATED = re.compile(
    rb"<c\b(?![^<>]*\bt=\"str\")[^<>]*>\s*(?:<f\b[^<>]*/>|<f\b[^<>]*>[^<]*</f>)\s*(?:<v\s*/>|<v></v>)?\s*</c>"
)
NO_VALUES = "formulas without a stored value are skipped; open the file, save it, and read it again"
MERGED = re.compile(rb"<mergeCell\b[^<>]*\bref=\"([A-Z]+\d+:[A-Z]+\d+)\"")
# Cells of a sheet that merged ranges may fill.
MERGED_CELLS = 20_000
# The place with the text of each merged cell, by row and column.
Merged = dict[int, dict[int, tuple[int, int]]]
# Parts of a number format: a currency, what only colours or aligns, and literals around digits.
CURRENCY = re.compile(r"\[\$([^\]-]*)[^\]]*\]")
HIDDEN_FORMAT = re.compile(r"\[[^\]<>=]*\]|[_*].")
LITERAL = r'((?:"[^"]*"|\\.|[^\w#?.,"@/])*)'
DIGITS_FORMAT = re.compile(rf"{LITERAL}([#0?,]*[#0?])(?:\.([#0?]+))?(,*){LITERAL}")
# Spreadsheets show so many digits of a number: further ones are noise of binary fractions. They round halves away from zero.
DIGITS, ROUNDING = 15, Context(prec=400, rounding=ROUND_HALF_UP)
# Day 0 of Office's dates; letters of a number format that make it one of dates, and what is none of its letters.
FIRST_DAY = datetime(1899, 12, 30)
DATE_CODE, QUOTED = re.compile("[ymdh]", re.IGNORECASE), re.compile(r'"[^"]*"|\\.|\[[^\]]*\]')


def pages(file: SourceFile) -> Pages:
    """Yield, for each sheet, its name and its non-empty rows as they were last calculated."""
    openpyxl = file.package("openpyxl", "workbooks")
    # openpyxl warns about parts that it would not write back, but we write nothing. `catch_warnings` is not thread-safe.
    warnings.filterwarnings("ignore", module=r"openpyxl\.")
    workbook = openpyxl.load_workbook(BytesIO(file.data), read_only=True, data_only=True)
    with open_archive(file) as archive:
        for sheet in workbook.worksheets:
            source = archive.read(sheet._worksheet_path)
            file.warnings += [NO_VALUES] if UNCALCULATED.search(source) and NO_VALUES not in file.warnings else []
            # A sheet may declare any size; without it, rows are as long as their content.
            sheet.reset_dimensions()
            tables = groupby(without_spacers(sheet_rows(sheet, merged_cells(source))), key=any)
            lines = chain.from_iterable(table_lines(rows) for filled, rows in tables if filled)
            yield file.page_text(chain([f"# {sheet.title}"], lines))


def merged_cells(sheet: bytes) -> Merged:
    """The merged cells of a sheet; ranges that are huge are left out."""
    from openpyxl.utils.cell import range_boundaries

    merged: Merged = defaultdict(dict)
    room = MERGED_CELLS
    for reference in MERGED.findall(sheet):
        left, top, right, bottom = range_boundaries(reference.decode())
        size = (right - left + 1) * (bottom - top + 1)
        if size <= room:
            room -= size
            for row in range(top, bottom + 1):
                merged[row] |= dict.fromkeys(range(left, right + 1), (top, left))
    return merged


def sheet_rows(sheet: Any, merged: Merged) -> Iterator[list[str]]:
    """Yield the cells of each row, with the text of a merged cell in each of its places."""
    texts: dict[tuple[int, int], str] = {}
    for number, cells in enumerate(sheet.iter_rows(), start=1):
        row = [cell_text(cell.value, getattr(cell, "number_format", None)).strip() for cell in cells]
        places = merged.get(number, {})
        row += [""] * (max(places, default=0) - len(row))
        for column, place in places.items():
            row[column - 1] = texts.setdefault(place, row[column - 1])
        yield row


def without_spacers(rows: Iterable[list[str]]) -> Iterator[list[str]]:
    """Yield rows; empty ones separate tables, but are left out where amounts up to the same column follow."""
    width, follows_gap = 0, False
    for row in rows:
        filled = [place for place, cell in enumerate(row, start=1) if cell]
        goes_on = follows_gap and len(filled) > 2 and filled[-1] == width and sum(map(is_amount, row)) > 1
        if filled and follows_gap and not goes_on:
            yield []
            width = 0
        if filled:
            width = max(width, filled[-1])
            yield row
        follows_gap = not filled


def cell_text(value: Any, number_format: str | None) -> str:
    """Format a value as the sheet shows it; dates as `2024-02-29`."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, datetime):
        return str(value.date() if value.time() == time.min else value)
    if isinstance(value, timedelta):
        minutes, seconds = divmod(round(value.total_seconds()), 60)
        return f"{minutes // 60}:{minutes % 60:02}" + (f":{seconds:02}" if "s" in (number_format or "s") else "")
    if isinstance(value, int | float):
        return number_text(value, number_format or "")
    return "" if value is None else str(value)


def number_text(value: float, number_format: str) -> str:
    """Write a number in a sheet's format: zeros in front, decimals, thousands, percent, a currency."""
    sections = number_format.split(";")
    is_own_section = value < 0 and len({HIDDEN_FORMAT.sub("", section) for section in sections[:2]}) > 1
    shown = HIDDEN_FORMAT.sub("", CURRENCY.sub(r'"\1"', sections[is_own_section]))
    match = DIGITS_FORMAT.fullmatch(shown) if isfinite(value) else None
    if match is None:
        return str(int(value)) if float(value).is_integer() else f"{value:.{DIGITS}g}"
    before, whole, decimals, scale, after = (part or "" for part in match.groups())
    number = Decimal(value if isinstance(value, int) else f"{value:.{DIGITS}g}") * 100 ** QUOTED.sub("", after).count(
        "%"
    )
    number = number.scaleb(-3 * len(scale))
    number = (abs(number) if is_own_section else number).quantize(Decimal(1).scaleb(-len(decimals)), context=ROUNDING)
    digits, _, fraction = f"{number:{',' if ',' in whole else ''}f}".partition(".")
    fixed = len(decimals.rstrip("#?"))
    fraction = fraction[:fixed] + fraction[fixed:].rstrip("0")
    digits = "-" * digits.startswith("-") + digits.removeprefix("-").zfill(whole.count("0"))
    return "".join([before, digits, "." * bool(fraction), fraction, after]).replace('"', "").replace("\\", "").strip()


def chart_lines(chart: Element) -> Iterator[str]:
    """Yield the lines of a chart's table: a row for each place on the axis, a column for each series."""
    names, columns, labels = [""], [dict[tuple[str, str], str]()], dict[str, str]()
    for series in chart.iterfind(".//{*}ser"):
        names.append(series.findtext("{*}tx//{*}v") or "")
        labels |= points(series, "cat", "xVal")
        columns[0] |= {(key, label): label for key, label in labels.items()}
        columns.append({(key, labels.get(key, "")): text for key, text in points(series, "val", "yVal").items()})
    rows = ([column.get(place, "") for column in columns] for place in dict.fromkeys(chain(*columns)))
    yield from table_lines(chain([names], rows), marked=1)


def points(series: Element, *names: str) -> dict[str, str]:
    """The values of a chart's series by their place."""
    # Of labels on several levels, the innermost come first.
    for level in (level for name in names for level in series.iterfind(f"{{*}}{name}//{{*}}pt/..")):
        code, values = level.findtext("{*}formatCode") or "", level.iterfind("{*}pt")
        return {pt.get("idx", ""): value_text(pt.findtext("{*}v") or "", pt.get("formatCode") or code) for pt in values}
    return {}


def value_text(value: str, code: str) -> str:
    """A value as its number format shows it; dates as `2024-02-29`."""
    try:
        number = float(value)
        if DATE_CODE.search(QUOTED.sub("", code)):
            return cell_text(FIRST_DAY + timedelta(days=number), code)
    except (ValueError, OverflowError):
        return value
    return number_text(number, code)

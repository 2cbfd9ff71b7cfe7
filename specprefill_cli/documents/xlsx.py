"""XLSX: the sheets of a workbook as pages, their rows as `a | b`."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from datetime import datetime, time
from io import BytesIO
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

from specprefill_cli.documents.cleaning import row_text
from specprefill_cli.documents.office import open_archive
from specprefill_cli.documents.reader import Pages, SourceFile
from specprefill_cli.installation import pip_command

if TYPE_CHECKING:
    from openpyxl.worksheet._read_only import ReadOnlyWorksheet

# A formula without a stored value: its cell ends after the formula, or after an empty value. In a text cell
# (`t="str"`) an empty value is a stored value.
UNCALCULATED = re.compile(
    rb"<c\b(?![^<>]*\bt=\"str\")[^<>]*>\s*(?:<f\b[^<>]*/>|<f\b[^<>]*>[^<]*</f>)\s*(?:<v\s*/>|<v></v>)?\s*</c>"
)
PERCENT_DIGITS = 10
# Spreadsheets show at most this many digits of a number; further digits are noise of binary fractions.
DIGITS = 15


def pages(file: SourceFile) -> Pages:
    """Yield, for each sheet, its name and its non-empty rows as they were last calculated."""
    try:
        import openpyxl
    except ImportError as error:
        remedy = f"install it with {pip_command('openpyxl')}"
        raise file.error("reading workbooks needs another package", remedy) from error
    # openpyxl warns about parts that it would not write back, but we write nothing. `catch_warnings` is not thread-safe.
    warnings.filterwarnings("ignore", module=r"openpyxl\.")
    with open_archive(file) as archive:
        uncalculated = has_uncalculated(archive)
    if uncalculated:
        file.warnings.append("formulas without a stored value are skipped; open the file, save it, and read it again")
    workbook = openpyxl.load_workbook(BytesIO(file.data), read_only=True, data_only=True)
    for sheet in workbook.worksheets:
        yield file.page_text(sheet_lines(sheet))


def has_uncalculated(archive: ZipFile) -> bool:
    """Whether a sheet holds formulas without a stored value; files written by programs may."""
    sheets = [entry for entry in archive.namelist() if re.fullmatch(r"xl/worksheets/[^/]+\.xml", entry)]
    return any(UNCALCULATED.search(archive.read(sheet)) for sheet in sheets)


def sheet_lines(sheet: ReadOnlyWorksheet) -> Iterator[str]:
    """Yield the sheet's name and its rows."""
    # A sheet may declare any size; without it, rows are as long as their content.
    sheet.reset_dimensions()
    yield f"# {sheet.title}"
    for row in sheet.iter_rows():
        line = row_text(cell_text(cell.value, getattr(cell, "number_format", None)) for cell in row)
        if line:
            yield line


def cell_text(value: Any, number_format: str | None) -> str:
    """Format a value roughly as the sheet shows it: dates, whole numbers, percentages."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, datetime):
        return str(value.date() if value.time() == time.min else value)
    if isinstance(value, int | float):
        if number_format and number_format.rstrip().endswith("%"):
            return f"{value * 100:.{PERCENT_DIGITS}g}%"
        return str(int(value)) if float(value).is_integer() else f"{value:.{DIGITS}g}"
    return str(value)

"""Whether the first rows of a table name its columns: by the forms of their cells and of those below."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain, pairwise, zip_longest

from specprefill_cli.documents.cleaning import shape

Row = list[str]
# Characters of a column's name; years, months and days, which may be names; letters that codes have fewer than.
LONGEST_NAME, NAME_LETTERS = 100, 3
YEAR = re.compile("(?:[0-9]{1,2}[./-]){0,2}(?:19[0-9]{2}|20[0-9]{2}|2100)(?:[./-][0-9]{1,2}){0,2}")
# A day, its month and year in words, which names no column.
DAY = re.compile(r"\d{1,2}\.? [^\W\d_]{3,}\.? \d{4}")


def column_names(header: Sequence[Row]) -> Row:
    """The name of each column: the different texts of its header cells, from above, without a title over all columns."""
    header = [row for row in header if len(set(filter(None, row))) > 1] or header[-1:]
    columns = zip_longest(*header, fillvalue="")
    return [" ".join(dict.fromkeys(filter(None, map(str.strip, column)))) for column in columns]


def is_header(names: Row, body: Sequence[Row], has_names: bool) -> bool:
    """Whether the first row names its columns: different words, no labels (`Name:`), over other words or numbers."""
    filled, shapes = Counter(filter(None, names)), Counter(map(shape, names))
    if 0 < 2 * sum(name.endswith(":") for name in names) <= len(names):
        return False
    # Without the titles between the rows.
    body = [row for row in body if len(set(filter(None, row))) > 1] or body
    columns = [[cell for cell in column if cell] for column in zip_longest(*body, fillvalue="")]
    if not has_names and is_form(names, columns):
        return False
    numbers = [bool(column) and all(map(is_number, column)) for column in columns]
    for place, (name, column, has_numbers) in enumerate(zip_longest(names, columns, numbers, fillvalue="")):
        number_shapes = {shape(cell) for cell in column if is_number(cell)}
        is_series = shapes[shape(name)] > 1 and len(number_shapes) == 1 and shape(name) not in ("0", *number_shapes)
        # A name has words, or is a year, or is one of a series such as `Q1`, `Q2` above other numbers.
        is_code = is_number(name) and sum(map(str.isalpha, name)) < NAME_LETTERS and not is_series
        is_value = is_code and (not YEAR.fullmatch(name) or (column and all(map(YEAR.fullmatch, column))))
        if (len(name) > LONGEST_NAME and not has_names) or is_value or (name and name in column):
            return False
        # A column without a name is empty or has a few remarks; columns of numbers may share a name.
        is_unclear = filled[name] > 1 and not (names[0] and has_numbers and body[0][0])
        if is_unclear or (place and not name and 2 * len(column) > len(body)):
            return False
    if len(filled) > 1 and any(numbers):
        # A list of two columns may be names and values: it has a header only above several numbers of a kind.
        kinds = [re.sub(r"[^\W\d_]{3,}", "a", shape(cell)) for cell in chain(*columns[1:2])]
        return has_names or len(names) > 2 or (2 * len({*kinds}) <= len(kinds) and (all(numbers) or not numbers[0]))
    return len(filled) > 1 and (has_names or (len(names) > 2 and len(body) > 1))


def is_form(names: Row, columns: Sequence[Row]) -> bool:
    """Whether columns of labels and of values take turns, one of which is a day: `Name | Moss Orme | Born | 3 May 1980`."""
    labels = [*names[::2], *chain(*columns[::2])]
    is_even = len(columns) > 3 and len(columns) % 2 == 0 and any(map(DAY.fullmatch, names[1::2]))
    return is_even and len({*labels}) == len(labels) and not re.search(r"\d", "".join(labels))


def is_data(head: Sequence[Row]) -> bool:
    """Whether the second row of a table belongs to its body: the first names each column, or it has a name and amounts."""
    names, cells = next(pairwise(head), ([""], [""]))
    is_whole = "" not in names and all(name != beside for name, beside in pairwise(names))
    return is_whole or ("" not in (names[0], cells[0]) and names[0] != cells[0] and any(map(is_amount, cells)))


def is_number(cell: str) -> bool:
    """Whether at least half of a cell's letters and digits are digits: amounts, dates, codes."""
    return 2 * sum(map(str.isdigit, cell)) >= sum(map(str.isalnum, cell)) > 0


def is_amount(cell: str) -> bool:
    """Whether a cell is a number without letters, and no year or date with one."""
    return is_number(cell) and cell.lower() == cell.upper() and not YEAR.fullmatch(cell)

"""The text of a page as it is collected, and rows of tables as lines that make sense alone: `Name: Moss Orme | Bonus: 930`."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain, compress, islice, pairwise, zip_longest
from typing import NamedTuple

from specprefill_cli.documents.cleaning import superscript
from specprefill_cli.documents.headers import Row, column_names, is_data, is_header, is_number

# Leading rows that decide whether a table has a header.
SAMPLE_ROWS = 50
# Places that merged cells may fill in a table, more of them for each cell, and the most that a cell fills in a row or column.
FILLED_CELLS, FILLED_PER_CELL, LARGEST_SPAN = 1000, 10, 1000
# Gaps between pieces of text, from narrow to wide.
NOTHING, SPACE, LINE, BLANK = range(4)
SEPARATORS = ("", " ", "\n", "\n\n")
# Characters before raised text that decide how it is written.
MARKED_TAIL = 20


def table_lines(rows: Iterable[Row], *, marked: int = 0, has_names: bool = False) -> Iterator[str]:
    """Yield the lines of a table: its header as `a | b`, then each row as `a: 1 | b: 2`, or `1 | 2` without.

    marked: leading rows that the file marks as header; has_names: most likely the first row is one
    """
    rows = iter(rows)
    head = list(islice(rows, SAMPLE_ROWS))
    # Above the names may stand titles, and in exports of banks facts about the table.
    usual = sorted(len([*filter(None, row)]) for row in head)[-2:][0] if has_names and head else 0
    while not marked and head:
        filled = [*filter(None, head[0])]
        if len({*filled}) > 1 and (2 * len(filled) > usual or head[0][: len(filled)] != filled):
            break
        yield row_text((list if has_names else dict.fromkeys)(head.pop(0)))
    # Exports of pages repeat the names.
    bodies = {n: [row for row in head[n:] if row not in head[:n]] for n in ((1,) if is_data(head) else (1, 2))}
    named = (n for n, body in bodies.items() if body and is_header(column_names(head[:n]), body, has_names))
    count = marked or next(named, 0)
    names = column_names(head[:count])
    yield from map(row_text, head[:count])
    for row in chain(head[count:], rows):
        yield row_text(row if row in head[:count] else named_cells(names, row, can_merge=not has_names))


def row_text(cells: Iterable[str]) -> str:
    """Write a table row as `a | b`; empty cells before a filled one keep their bars."""
    return " ".join(" | ".join(cells).split()).rstrip("| ")


class Cell(NamedTuple):
    """A cell, and the number of columns and rows that it spans. is_above: whether it goes on with the cell above."""

    text: str
    columns: int = 1
    rows: int = 1
    is_above: bool = False
    is_head: bool = False


def span_of(value: str) -> int:
    """The columns or rows that an attribute says a cell spans."""
    return max(1, min(int(value), LARGEST_SPAN)) if value.isdecimal() and len(value) < 9 else 1


def filled_rows(rows: Iterable[Sequence[Cell]]) -> Iterator[Row]:
    """Yield the rows of a table with the text of a merged cell in each of its places, as far as that stays in proportion."""
    below: dict[int, Cell] = {}
    above: Row = []
    room = FILLED_CELLS
    for cells in rows:
        row: Row = []
        pending, last = list(reversed(cells)), max(below, default=-1)
        while pending or len(row) <= last:
            cell = below.pop(len(row), None)
            if cell is None:
                cell = pending.pop() if pending else Cell("")
                room += FILLED_PER_CELL
            width = min(cell.columns, room + 1)
            room -= width
            for column in range(len(row), len(row) + width):
                row.append("".join(above[column : column + 1]) if cell.is_above else cell.text.strip())
                if cell.rows > 1:
                    below[column] = cell._replace(columns=1, rows=cell.rows - 1)
        above = row
        yield row


def fill_merged(rows: Iterable[Sequence[str]], walls: Sequence[Set[int]]) -> Iterator[Sequence[str]]:
    """Yield rows, or columns, with each text in all cells of its merged cell: those without the walls that most have."""
    usual = {place for place, count in Counter(chain(*walls)).items() if 2 * count >= len(walls)}
    for row, wall in zip(rows, walls, strict=True):
        edges = [0, *(place for place in range(1, len(row)) if place in wall or place not in usual), len(row)]
        for first, last in pairwise(edges):
            texts = [*filter(None, row[first:last])] or [""]
            row = [*row[:first], *(texts * (last - first) if len(texts) == 1 else row[first:last]), *row[last:]]
        yield row


def named_cells(names: Row, row: Row, *, can_merge: bool = False) -> Row:
    """The filled cells of a row behind the names of their columns, if any. can_merge: whether equal ones may be merged."""
    if not names:
        return row
    # A merged row, or a single cell at the left, is a title between the rows, unless it is a number.
    if len((set if can_merge else list)(filter(None, row))) < 2 and row[:1] != [""] and not is_number(row[0]):
        return row[:1]
    return [f"{name}: {cell}" if name else cell for name, cell in zip_longest(names, row, fillvalue="") if cell.strip()]


@dataclass
class Flow:
    """Text of the page, or of a cell. gap: the widest gap since the last piece; prefix: number of a list item."""

    pieces: list[str] = field(default_factory=list)
    gap: int = NOTHING
    prefix: str = ""

    def separate(self, gap: int) -> None:
        self.gap = max(self.gap, gap)

    def write(self, text: str) -> None:
        self.pieces += [SEPARATORS[self.gap] if self.pieces else "", self.prefix + text]
        self.gap, self.prefix = NOTHING, ""

    def write_apart(self, text: str, gap: int) -> None:
        if text.strip():
            self.separate(gap)
            self.write(text)
            self.separate(gap)

    def write_raised(self, text: str, is_power: bool = False) -> None:
        self.gap = NOTHING if is_power else self.gap
        tail = self.pieces[-1][-MARKED_TAIL:] if self.pieces and self.gap == NOTHING else ""
        if marked := f"^{text.strip()}" if is_power else superscript(tail, text).removeprefix(tail):
            self.write(marked)


@dataclass
class Table:
    """An open table. heads: rows that are a header; flow: text of the open cell, which `cell` describes."""

    rows: list[list[Cell]] = field(default_factory=list)
    heads: list[bool] = field(default_factory=list)
    flow: Flow | None = None
    cell: Cell = field(default_factory=lambda: Cell(""))
    has_blocks: bool = False

    def start_row(self) -> None:
        self.end_cell()
        self.rows.append([])
        self.heads.append(True)

    def start_cell(self, is_head: bool, columns: str, rows: str, *, is_above: bool = False) -> None:
        """Begin a cell, with the numbers of columns and rows that the file says it spans."""
        self.end_cell()
        if not self.rows:
            self.start_row()
        self.heads[-1] &= is_head
        self.flow, self.cell = Flow(), Cell("", span_of(columns), span_of(rows), is_above, is_head)

    def end_cell(self) -> None:
        if self.flow is not None:
            self.rows[-1].append(self.cell._replace(text="".join(self.flow.pieces)))
            self.flow = None

    def lines(self) -> list[str]:
        """The rows; or the texts of the cells, where the table only arranges parts of the page."""
        self.end_cell()
        filled = [any(cell.text.strip() for cell in row) for row in self.rows]
        if (self.has_blocks and not any(self.heads)) or max(map(len, self.rows), default=0) < 2:
            return [cell.text for row in self.rows for cell in row if cell.text.strip()]
        # Merged cells reach into empty rows.
        rows, heads = list(compress(filled_rows(self.rows), filled)), [*compress(self.heads, filled), False]
        first = [cell.is_head for cell in next(compress(self.rows, filled), []) if cell.text.strip()]
        if first[:1] == [True] and not all(first):
            # Headers beside their values.
            return list(map(row_text, rows))
        marked = heads.index(False) % max(len(rows), 1)
        # A title alone names no columns.
        return list(table_lines(rows, marked=marked * any(len(set(filter(None, row))) > 1 for row in rows[:marked])))


class Writer:
    """Collects the text of a page. tables: the open tables, the innermost last."""

    def __init__(self) -> None:
        self.page = Flow()
        self.tables: list[Table] = []

    @property
    def flow(self) -> Flow:
        """Where text goes: the innermost open cell, or the page."""
        return next((table.flow for table in reversed(self.tables) if table.flow is not None), self.page)

    def end_table(self) -> None:
        lines = self.tables.pop().lines()
        self.flow.write_apart("\n".join(lines), LINE)
        if self.tables and lines:
            self.tables[-1].has_blocks = True

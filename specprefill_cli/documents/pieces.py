"""Texts of a PDF page with their places: characters, pieces of lines, lines of tables around them, and tables without any."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from itertools import chain, pairwise
from statistics import median
from typing import Any, NamedTuple

from specprefill_cli.documents.headers import Row, is_number
from specprefill_cli.documents.tables import table_lines

# In heights of a line: the gap before a raised mark, and between baselines of one line.
MARK_GAP, SAME_LINE = 0.4, 0.3
# Lines of a column of prose or of a table.
FEWEST_LINES = 3
# Heights of a line between texts that belong together, one above the other.
FAR = 2
# Lines of a cell beside numbers that are drawn behind its last line.
WRAPPED = 6
LOWER_START = re.compile(r"[^\w]*[^\W\d_A-Z]")


class Box(NamedTuple):
    """The edges of a text, in points, y upwards."""

    left: float
    bottom: float
    right: float
    top: float


# A character, its box and the height of its baseline; text, name and box of a field or an annotation.
Character = tuple[str, Box, float]
Note = tuple[str, str, Box]


@dataclass
class Piece:
    """Text on one line without a wide gap. left, right, base, height: in points, y upwards."""

    text: str
    left: float
    right: float
    base: float
    height: float

    def is_level(self, base: float) -> bool:
        return abs(base - self.base) < SAME_LINE * self.height


Pieces = list[Piece]


@dataclass(frozen=True)
class Grid:
    """A table's lines: places from the left and from below; by row and by column, the cells right behind a line."""

    columns: Sequence[float]
    rows: Sequence[float]
    verticals: Sequence[Set[int]]
    horizontals: Sequence[Set[int]]

    def parts(self, left: float, right: float, base: float, height: float) -> bool:
        """Whether a line of the table parts two texts of this height on a baseline; in merged cells, a gap does."""
        first, last = bisect_right(self.columns, left), bisect_right(self.columns, right)
        if not self.rows[0] < base < self.rows[-1] or first == last:
            return False
        verticals = self.verticals[-bisect_right(self.rows, base)]
        return right - left > MARK_GAP * height or not verticals.isdisjoint(range(first, last))

    def cell(self, piece: Piece) -> tuple[int, int]:
        """Row from below and column from the left of the cell that holds a piece, both from 1."""
        return bisect_right(self.rows, piece.base), bisect_right(self.columns, piece.left + 1)

    def holds(self, piece: Piece) -> bool:
        return self.rows[0] < piece.base < self.rows[-1] and self.columns[0] < piece.left + 1 < self.columns[-1]


def grouped(items: Iterable[Any], goes_on: Callable[[list[Any], Any], object]) -> list[list[Any]]:
    """Items in groups: each with those right before it, if it goes on with them."""
    groups: list[list[Any]] = []
    for item in items:
        if groups and goes_on(groups[-1], item):
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups


def rejoined(rows: Iterable[Pieces]) -> list[Pieces]:
    """Rows in drawing order; numbers that follow a cell of several lines go on with the line beside them."""
    joined = list[Pieces]()
    for row in rows:
        are_numbers = all(is_number(piece.text) for piece in row)
        level = (
            held for held in joined[-WRAPPED:-1] if held[-1].is_level(row[0].base) and held[-1].right < row[0].left
        )
        first = next((held for held in level if are_numbers and len(held + row) > 2), None)
        if first:
            first += row
        else:
            joined.append(row)
    return joined


def goes_on(held: Sequence[Pieces], row: Pieces) -> bool:
    """Whether a row goes on with rows above: a text may go on below, in its column."""
    edge = min(first.right for first, *_ in held)
    # Words below a title name the columns of another table.
    is_new = not (held[-1][1:] or held[-1][0].left > edge or any(is_number(piece.text) for piece in row))
    return bool(held[0][1:]) and ((len(row) > 1 and not is_new) or row[0].left > edge)


def is_title(held: Sequence[Pieces], row: Pieces) -> bool:
    """Whether a row is a text alone right below rows, in their first column."""
    text, above = row[0], held[-1][0]
    if len(row) > 1 or len(held[0]) < 2 or is_number(text.text):
        return False
    is_near = 0 < above.base - text.base < FAR * text.height
    return is_near and text.right < min(second.left for _, *others in held for second in others[:1])


def block_lines(rows: Sequence[Pieces], *, is_part: bool = False) -> Iterable[str]:
    """The lines of rows of pieces; in a table with empty cells, each with the name above it. is_part: of a divided block."""
    # A long text may reach into the empty cells behind it.
    fitting = (piece for row in rows if len(row) > 1 for piece in row if row is rows[0] or not spans(piece, rows[0]))
    starts, edge = list[float](), float("-inf")
    for piece in sorted(fitting, key=lambda piece: piece.left):
        starts += [piece.left] if piece.left >= edge else []
        edge = max(edge, piece.right)
    cells = [[""] * (len(starts) or 1) for _ in rows]
    for row, texts in zip(rows, cells, strict=True):
        for piece in row:
            texts[bisect_right(starts, piece.left) - 1] += piece.text
    lines = [" ".join(piece.text for piece in row) for row in rows]
    if lines == [" ".join(filter(None, texts)) for texts in cells] and is_table(rows, cells):
        return table_lines(with_shared_names(with_whole_cells(rows, cells)))
    # The header or the footer of a page may have joined its table.
    usual = median([above[0].base - row[0].base for above, row in pairwise(rows)] or [0.0])
    parts = grouped(rows, lambda held, row: goes_on(held, row) and 0 < held[-1][0].base - row[0].base < FAR * usual)
    return (
        lines if is_part or len(parts) < 2 else chain.from_iterable(block_lines(part, is_part=True) for part in parts)
    )


def spans(piece: Piece, row: Pieces) -> bool:
    """Whether a piece reaches below two of a row."""
    return any(piece.left < left.right and piece.right > right.left for left, right in pairwise(row))


def is_table(rows: Sequence[Pieces], cells: Sequence[Row]) -> bool:
    """Whether cells are a table with empty ones: of numbers, or of words and marks below a row of names."""
    wide = [texts for row, texts in zip(rows, cells, strict=True) if len(row) > 1]
    if not any("" in texts for texts in wide):
        return False
    has_columns = len(wide) < 2 * sum(len(row) > 2 for row in rows)
    has_numbers = FEWEST_LINES <= len(wide) <= 2 * sum(any(map(is_number, texts)) for texts in wide)
    is_named = (
        len(wide) == len(rows) > 2 < len(cells[0]) and all(cells[0][1:]) and any("" in texts for texts in wide[1:])
    )
    return (has_columns and has_numbers) or is_named


def with_whole_cells(rows: Sequence[Pieces], cells: Sequence[Row]) -> list[Row]:
    """Cells of a table; a text alone goes on with the text above it."""
    table = list[Row]()
    for row, texts in zip(rows, cells, strict=True):
        place = next((place for place, text in enumerate(texts) if text), 0)
        is_rest = table and len(row) == 1 and (place or LOWER_START.match(texts[0]))
        if is_rest and not (is_number(texts[place]) or is_number(table[-1][place])):
            table[-1][place] += f" {texts[place]}"
        else:
            table.append(texts)
    return table


def with_shared_names(table: list[Row]) -> list[Row]:
    """Rows of a table; a name centred between two columns becomes that of both."""
    names, *body = table
    for place in reversed(range(1, len(names) - 1)):
        if names[place] and not any([*(texts[place] for texts in body), names[place - 1], names[place + 1]]):
            names[place - 1] = names[place + 1] = names[place]
            for texts in table:
                del texts[place]
    return table

"""Texts of a PDF page with their places: characters, pieces of lines, and the lines of tables around them."""

from bisect import bisect_right
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

# In heights of a line: the gap before a raised mark, and between baselines of one line.
MARK_GAP, SAME_LINE = 0.4, 0.3


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

"""Pieces of text on a page: where they stand."""

from dataclasses import dataclass
from typing import NamedTuple

# Share of a line's height by which the baselines of one line may differ.
SAME_LINE = 0.3


class Box(NamedTuple):
    """The edges of a text, in points, y upwards."""

    left: float
    bottom: float
    right: float
    top: float


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

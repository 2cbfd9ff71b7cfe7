"""A section of the study's page: findings in words, plots and tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from specprefill_cli.lab.tables import Columns, cells, number

figure = partial(number, unknown="-")
Plots = dict[str, Callable[[], str]]


class Figures:
    """A table of text."""

    def __init__(self, name: str, columns: Columns, rows: Sequence[dict[str, Any]]) -> None:
        self.name, self.header, self.rows = name, list(columns), cells(rows, columns)


@dataclass(frozen=True)
class Section:
    """One question of the study: findings in words, functions that draw SVG by file name, and tables."""

    title: str
    findings: Sequence[str]
    plots: Plots
    tables: Sequence[Figures] = ()

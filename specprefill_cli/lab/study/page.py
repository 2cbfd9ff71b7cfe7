"""The study as a self-contained HTML page, as plot files, and as tables for a terminal."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Group
from rich.table import Table

from specprefill_cli.lab.study.figures import Figures, sections
from specprefill_cli.reporting.html import environment
from specprefill_cli.reporting.safe import plain


def render_study(record: dict[str, Any]) -> str:
    """The HTML page of a study's record (`study.json`)."""
    from markupsafe import Markup

    views = [
        {
            "title": section.title,
            "findings": section.findings,
            # Matplotlib escapes the text in plots.
            "plots": [Markup(draw()) for draw in section.plots.values()],
            "tables": section.tables,
        }
        for section in sections(record)
    ]
    pair = f"{record['pair']['draft']} -> {record['pair']['target']}"
    template = environment().get_template("study.html")
    return template.render(pair=pair, questions=f"{record['questions']:,}", sections=views)


def finite(value: Any) -> Any:
    """The record with None for numbers that JSON cannot hold, and lists for tuples."""
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def study_plots(record: dict[str, Any]) -> dict[str, str]:
    """Every plot of the page as SVG, by file name without suffix."""
    return {name: draw() for section in sections(record) for name, draw in section.plots.items()}


def study_tables(record: dict[str, Any]) -> Group:
    """The page's tables for a terminal."""
    return Group(*(rich_table(figures) for section in sections(record) for figures in section.tables))


def rich_table(figures: Figures) -> Table:
    """One table, with text first and figures to the right."""
    table = Table(title=plain(figures.name), title_justify="left", box=None, padding=(0, 2, 0, 0))
    for place, label in enumerate(figures.header):
        table.add_column(plain(label), justify="right" if place else "left", overflow="fold")
    for row in figures.rows:
        table.add_row(*map(plain, row))
    return table

"""The study as one self-contained page: a section for each question, with its pictures and tables."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Group
from rich.table import Table

from specprefill_cli.lab.study.figures import Figures, sections
from specprefill_cli.reporting.html import environment
from specprefill_cli.reporting.safe import plain


def render_study(record: dict[str, Any]) -> str:
    """The page of a study's record (`study.json`)."""
    from markupsafe import Markup

    found = [
        {
            "title": one.title,
            "findings": one.findings,
            # The plots escape every word in them.
            "plots": [Markup(svg) for _, svg in one.plots],
            "tables": one.tables,
        }
        for one in sections(record)
    ]
    pair = f"{record['pair']['draft']} -> {record['pair']['target']}"
    return (
        environment().get_template("study.html").render(pair=pair, questions=f"{record['questions']:,}", sections=found)
    )


def finite(value: Any) -> Any:
    """The same record with None for numbers that JSON cannot hold, and lists for tuples."""
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def study_plots(record: dict[str, Any]) -> dict[str, str]:
    """Every picture of the page by its file's name without suffix."""
    return {name: svg for one in sections(record) for name, svg in one.plots}


def study_tables(record: dict[str, Any]) -> Group:
    """The page's tables for a terminal."""
    return Group(*(rich_table(figures) for one in sections(record) for figures in one.tables))


def rich_table(figures: Figures) -> Table:
    table = Table(title=plain(figures.name), title_justify="left", box=None, padding=(0, 2, 0, 0))
    for place, head in enumerate(figures.header):
        table.add_column(plain(head), justify="right" if place else "left", overflow="fold")
    for row in figures.rows:
        table.add_row(*map(plain, row))
    return table

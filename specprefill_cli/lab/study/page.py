"""The study as a self-contained HTML page, as plot files, and as tables for a terminal."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Group

from specprefill_cli.lab.study.figures import sections
from specprefill_cli.lab.tables import rich_table
from specprefill_cli.reporting.html import environment


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
    return json.loads(json.dumps(value), parse_constant=lambda _name: None)


def study_plots(record: dict[str, Any]) -> dict[str, str]:
    """Every plot of the page as SVG, by file name without suffix."""
    return {name: draw() for section in sections(record) for name, draw in section.plots.items()}


def study_tables(record: dict[str, Any]) -> Group:
    """The page's tables for a terminal."""
    tables = (figures for section in sections(record) for figures in section.tables)
    return Group(*(rich_table(figures.header, figures.rows, figures.name) for figures in tables))

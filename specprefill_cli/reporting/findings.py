"""Findings of `doctor` and `pairs check`, as a table and as one JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from specprefill_cli.diagnostics.finding import Check, State, any_broken
from specprefill_cli.reporting.jsonl import SCHEMA
from specprefill_cli.reporting.safe import plain

STYLES = {State.OK: "green", State.LIMITED: "yellow", State.NO: "yellow", State.BROKEN: "bold red"}


def check_table(checks: Sequence[Check]) -> Table:
    """Build a table with a row for each finding: name, state, detail."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        table.add_row(plain(check.name), plain(check.state.value, STYLES[check.state]), plain(check.detail))
    return table


def check_record(checks: Sequence[Check], **more: Any) -> dict[str, Any]:
    """Return the findings as JSON values; `ok` is false when something that is needed is broken."""
    return {"schema": SCHEMA, **more, "ok": not any_broken(checks), "checks": [asdict(check) for check in checks]}

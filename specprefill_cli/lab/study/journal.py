"""Rows of a long measurement in a file: a measurement that was stopped goes on where it ended."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.lab.tables import Row


def measure_items(
    path: Path, items: Sequence[Item], measure: Callable[[Item], Row], step: Callable[[str], None]
) -> list[Row]:
    """Append a row for each question that has none yet; return the rows of all, in their order.

    measure: makes a row with the question's identifier as `id`; step: gets the progress and the time left
    """
    rows = {row["id"]: row for row in read_journal(path)}
    missing = [item for item in items if item.identifier not in rows]
    started = time.monotonic()
    with path.open("a", encoding="utf-8") as journal:
        for number, item in enumerate(missing):
            seconds = (time.monotonic() - started) / max(number, 1) * (len(missing) - number)
            left = f", {seconds / 60:,.0f} minutes left" if number else ""
            step(f"question {number + 1:,} of {len(missing):,}{left}")
            rows[item.identifier] = measure(item)
            journal.write(json.dumps(rows[item.identifier]) + "\n")
            journal.flush()
    return [rows[item.identifier] for item in items]


def read_journal(path: Path) -> list[Row]:
    """The rows of a file, from which a last row that was cut off is removed."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    complete = text[: text.rfind("\n") + 1]
    if complete != text:
        path.write_text(complete, encoding="utf-8")
    return [json.loads(line) for line in complete.splitlines()]

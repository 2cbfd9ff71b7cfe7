"""The loop of a batch: a line in, a row out, nothing kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from specprefill_cli.batching.rows import BadRow, Row, parse_line
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.reporting.jsonl import SCHEMA
from specprefill_cli.signals import deferred_signals

NOTHING_FINISHED: Iterator[tuple[str | int, bool]] = iter(())
Answerer = Callable[[Row], dict[str, Any]]


@dataclass
class Count:
    """Rows so far: answered in this run, failed (in earlier runs too), and skipped because the output has them."""

    answered: int = 0
    failed: int = 0
    skipped: int = 0
    failed_before: int = 0


def run_batch(
    lines: Iterable[bytes],
    has_documents: bool,
    answer: Answerer,
    write: Callable[[dict[str, Any]], None],
    finished: Iterator[tuple[str | int, bool]] = NOTHING_FINISHED,
    step: Callable[[Count], None] = lambda _count: None,
) -> Count:
    """Answer each line as it arrives, in order; a row that fails becomes an error row and the next one follows.

    answer: returns a row's record; what it raises goes into the error row
    finished: identifier of each row that an earlier run wrote, and whether it failed; as many input rows are skipped
    step: called after every row

    Raises SpecprefillError when the rows of the earlier run are not those of this input. An exception of `write` and
    KeyboardInterrupt end the batch and abandon the current row.
    """
    count = Count()
    for number, line in enumerate(lines, 1):
        row = parse_line(line, number, has_documents)
        if row is None:
            continue
        known = next(finished, None)
        if known is not None:
            skip(row, number, known, count)
            continue
        record = record_of(row, answer)
        with deferred_signals(insistent=True):
            write(record)
        count.answered += 1
        count.failed += "error" in record
        step(count)
    if next(finished, None) is not None:
        raise SpecprefillError("--resume: the output has more rows than the input; give the same input as before")
    return count


def skip(row: Row | BadRow, number: int, known: tuple[str | int, bool], count: Count) -> None:
    """Count a row that the output already has. Raises SpecprefillError where the output has another in its place."""
    if row.identifier != known[0]:
        raise SpecprefillError(
            f"--resume: line {number} of the input has id {row.identifier!r}, the output has {known[0]!r} in its place; "
            "give the same input as before, or another --out"
        )
    count.skipped += 1
    count.failed += known[1]
    count.failed_before += known[1]


def record_of(row: Row | BadRow, answer: Answerer) -> dict[str, Any]:
    """The row's record, or an error record."""
    if isinstance(row, BadRow):
        return error_record(row.identifier, row.error)
    try:
        return {**answer(row), "id": row.identifier}
    except Exception as error:
        return error_record(row.identifier, error)


def error_record(identifier: str | int, error: Exception) -> dict[str, Any]:
    """A failed row's record, with the error's type and message."""
    message = " ".join(str(error).split()) or type(error).__name__
    return {"schema": SCHEMA, "id": identifier, "error": {"type": type(error).__name__, "message": message}}

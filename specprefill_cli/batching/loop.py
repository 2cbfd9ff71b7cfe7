"""The loop of a batch: a line in, a row out, nothing kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from specprefill_cli.batching.rows import BadRow, Row, parse_line
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.reporting.jsonl import SCHEMA

NOTHING_FINISHED: Iterator[tuple[str | int, bool]] = iter(())
Answerer = Callable[[Row], dict[str, Any]]


@dataclass
class Count:
    """Rows so far: answered in this run, failed (earlier ones included), and skipped because the output has them."""

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
    held: Callable[[], AbstractContextManager] = nullcontext,
) -> Count:
    """Answer each line as it arrives, in order; a row that fails becomes an error row and the next one follows.

    answer: gives a row's record, or raises what goes into the error row
    finished: the rows that an earlier run wrote; as many rows of input are skipped
    step: told of every row; held: guards the writing of one

    Raises SpecprefillError when the rows of the earlier run are not those of this input. What `write` raises ends the
    batch, as KeyboardInterrupt does: the row at hand is abandoned.
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
        with held():
            write(record)
        count.answered += 1
        count.failed += "error" in record
        step(count)
    if next(finished, None) is not None:
        raise SpecprefillError("--resume: the output has more rows than the input; give the same input as before")
    return count


def skip(row: Row | BadRow, number: int, known: tuple[str | int, bool], count: Count) -> None:
    """Count a row that the output has; raises SpecprefillError where it has another in this place."""
    if row.identifier != known[0]:
        raise SpecprefillError(
            f"--resume: line {number} of the input has id {row.identifier!r}, the output has {known[0]!r} in its place; "
            "give the same input as before, or another --out"
        )
    count.skipped += 1
    count.failed += known[1]
    count.failed_before += known[1]


def record_of(row: Row | BadRow, answer: Answerer) -> dict[str, Any]:
    """The row's record, or its error as one."""
    if isinstance(row, BadRow):
        return error_record(row.identifier, row.error)
    try:
        return {**answer(row), "id": row.identifier}
    except Exception as error:
        return error_record(row.identifier, error)


def error_record(identifier: str | int, error: Exception) -> dict[str, Any]:
    message = " ".join(str(error).split()) or type(error).__name__
    return {"schema": SCHEMA, "id": identifier, "error": {"type": type(error).__name__, "message": message}}

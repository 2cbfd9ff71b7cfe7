"""The loop of a batch: a line in, a row out, nothing kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from specprefill_cli.batching.output import Finished
from specprefill_cli.batching.rows import BadRow, Row, key_of, parse_line
from specprefill_cli.errors import SpecprefillError, first_line
from specprefill_cli.reporting.jsonl import SCHEMA
from specprefill_cli.signals import deferred_signals

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
    finished: Finished,
    count: Count,
    step: Callable[[], None] = lambda: None,
) -> None:
    """Answer each line as it arrives, in order; a row that fails becomes an error row and the next one follows.

    answer: returns a row's record; what it raises goes into the error row
    finished: rows of earlier runs, which are skipped; what is left of it at the end is not in the input
    count: kept up to date; step: called after every row

    An exception of `write` and KeyboardInterrupt end the batch and abandon the current row, and so does a failed device.
    """
    for number, line in enumerate(lines, 1):
        row = parse_line(line, number, has_documents)
        if row is None or skip(row, finished, count):
            continue
        record = record_of(row, answer)
        with deferred_signals(insistent=True):
            write(record)
            count.answered += 1
            count.failed += "error" in record
        step()


def skip(row: Row | BadRow, finished: Finished, count: Count) -> bool:
    """Whether the output has this row already, which is then counted."""
    for failed in (False, True):
        if finished[key_of(row), failed]:
            finished[key_of(row), failed] -= 1
            count.skipped += 1
            count.failed += failed
            count.failed_before += failed
            return True
    return False


def record_of(row: Row | BadRow, answer: Answerer) -> dict[str, Any]:
    """The row's record, or an error record; a row without an identifier of its own is found again by `row_hash`.

    Raises SpecprefillError where the device has failed, which is no fault of the row.
    """
    identity = {"id": row.identifier} | ({"row_hash": row.content_hash} if row.content_hash else {})
    if isinstance(row, BadRow):
        return error_record(row.error, identity)
    try:
        return {**answer(row), **identity}
    except Exception as error:
        if is_device_failure(error):
            raise SpecprefillError(
                f"the device failed ({first_line(error)}), and this process can answer nothing more; run the same command "
                "with --out and --resume to go on in a new one"
            ) from error
        return error_record(error, identity)


def is_device_failure(error: Exception) -> bool:
    """Whether an accelerator raised an error that all further work on it will raise too: any but a lack of memory."""
    kind, text = type(error).__name__, str(error)
    failed = kind == "AcceleratorError" or (isinstance(error, RuntimeError) and re.search(r"\b(CUDA|HIP) error", text))
    return bool(failed) and "out of memory" not in text.lower()


def error_record(error: Exception, identity: dict[str, Any]) -> dict[str, Any]:
    """A failed row's record, with the error's type and message."""
    message = " ".join(str(error).split()) or type(error).__name__
    return {"schema": SCHEMA, **identity, "error": {"type": type(error).__name__, "message": message}}

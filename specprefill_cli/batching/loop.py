"""The loop of a batch: lines in, rows out in their order, and no more kept than the workers need."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from specprefill_cli.batching.arrivals import Source
from specprefill_cli.batching.dispatch import Dispatcher
from specprefill_cli.batching.executor import (
    Answerer,
    DeviceFailure,
    Event,
    Executor,
    Inbox,
    Line,
    Task,
    Tell,
)
from specprefill_cli.batching.output import Finished
from specprefill_cli.batching.rows import BadRow, Row, key_of, parse_line
from specprefill_cli.errors import SpecprefillError, first_line
from specprefill_cli.reporting.jsonl import SCHEMA
from specprefill_cli.signals import SLICE_SECONDS, deferred_signals


@dataclass
class Count:
    """Rows so far: answered in this run, failed (in earlier runs too), and skipped because the output has them."""

    answered: int = 0
    failed: int = 0
    skipped: int = 0
    failed_before: int = 0


def run_rows(
    source: Source,
    has_documents: bool,
    executor: Executor,
    write: Callable[[dict[str, Any]], None],
    finished: Finished,
    count: Count,
    step: Callable[[], None] = lambda: None,
    tell: Tell = lambda _text: None,
    ordered: bool = True,
) -> None:
    """Let an executor's workers answer the lines of a source, and write their records.

    ordered: in the order of the lines; otherwise as soon as they are there
    finished: rows of earlier runs, which are skipped; what is left of it at the end is not in the input
    count: kept up to date; step: called after every row; tell: shows the user what workers tell, and that one was lost

    Raises SpecprefillError where the workers cannot go on; rows that are not written are then not answered.
    """
    inbox: Inbox = SimpleQueue()
    request = source(inbox)
    dispatcher = Dispatcher(executor, inbox, tell)
    output = Output(write, count, step, ordered)
    number, requested, ended = 0, False, False
    while not ended or output.pending:
        if not (ended or requested) and output.pending < executor.window:
            requested = True
            request()
        if inbox.empty():
            dispatcher.assign()
        event = next_event(inbox)
        if isinstance(event, Line):
            number, requested, ended = number + 1, False, not event.text
            row = parse_line(event.text, number, has_documents)
            if row is None or skip(row, finished, count):
                continue
            ticket = output.add(row)
            if isinstance(row, BadRow):
                output.finish(ticket, row.error)
            else:
                dispatcher.add(Task(ticket, row))
        else:
            for ticket, outcome in dispatcher.handle(event).items():
                output.finish(ticket, outcome)


def next_event(inbox: Inbox) -> Event:
    """Wait for the next event, and for Ctrl-C, which a single wait would miss if it came just before."""
    while True:
        with suppress(Empty):
            return inbox.get(timeout=SLICE_SECONDS)


class Output:
    """Writes the records of rows: in the order of the rows, so that a record that is early waits, or as they come.

    pending: rows that are not written
    """

    def __init__(
        self, write: Callable[[dict[str, Any]], None], count: Count, step: Callable[[], None], ordered: bool = True
    ) -> None:
        self.write, self.count, self.step, self.ordered = write, count, step, ordered
        # The oldest row first; a record, once there is one.
        self.rows: dict[int, tuple[Row | BadRow, dict[str, Any] | None]] = {}
        self.tickets = 0

    @property
    def pending(self) -> int:
        return len(self.rows)

    def add(self, row: Row | BadRow) -> int:
        """Take the next row; its ticket."""
        self.rows[self.tickets] = row, None
        self.tickets += 1
        return self.tickets - 1

    def finish(self, ticket: int, outcome: dict[str, Any] | SpecprefillError) -> None:
        """Take the record of a row, or why it has none, and write what can be written."""
        row, _ = self.rows[ticket]
        record = outcome if isinstance(outcome, dict) else error_record(outcome, identity_of(row))
        if not self.ordered:
            self.put(ticket, record)
            return
        self.rows[ticket] = row, record
        while self.rows:
            oldest, (_, early) = next(iter(self.rows.items()))
            if early is None:
                return
            self.put(oldest, early)

    def put(self, ticket: int, record: dict[str, Any]) -> None:
        """Write the record of a row, which is then done."""
        with deferred_signals(insistent=True):
            self.write(record)
            self.count.answered += 1
            self.count.failed += "error" in record
        del self.rows[ticket]
        self.step()


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
    """The row's record, or an error record.

    Raises DeviceFailure where the device has failed, which is no fault of the row.
    """
    if isinstance(row, BadRow):
        return error_record(row.error, identity_of(row))
    try:
        return {**answer(row), **identity_of(row)}
    except Exception as error:
        if is_device_failure(error):
            raise DeviceFailure(first_line(error)) from error
        return error_record(error, identity_of(row))


def identity_of(row: Row | BadRow) -> dict[str, Any]:
    """The keys that tell whose record it is; a row without an identifier of its own is found again by `row_hash`."""
    return {"id": row.identifier} | ({"row_hash": row.content_hash} if row.content_hash else {})


def is_device_failure(error: Exception) -> bool:
    """Whether an accelerator raised an error that all further work on it will raise too: any but a lack of memory."""
    kind, text = type(error).__name__, str(error)
    failed = kind == "AcceleratorError" or (isinstance(error, RuntimeError) and re.search(r"\b(CUDA|HIP) error", text))
    return bool(failed) and "out of memory" not in text.lower()


def error_record(error: Exception, identity: dict[str, Any]) -> dict[str, Any]:
    """A failed row's record, with the error's type and message."""
    message = " ".join(str(error).split()) or type(error).__name__
    return {"schema": SCHEMA, **identity, "error": {"type": type(error).__name__, "message": message}}

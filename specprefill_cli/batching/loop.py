"""The loop of a batch: lines in, at most so many requests in flight, rows out in their order."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from specprefill_cli.batching.output import Finished
from specprefill_cli.batching.rows import BadRow, Line, Row, Source, identity_of, parse_line
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.record import SCHEMA
from specprefill_cli.signals import SLICE_SECONDS, deferred_signals

# Rows that may be read ahead of the oldest one that is not written, for each one in flight.
READ_AHEAD = 4

Outcome = dict[str, Any] | BaseException


class RowTimeout(SpecprefillError):
    """A row took longer than --row-timeout."""


class BatchEnded(SpecprefillError):
    """The engine can answer nothing more."""


class RowEngine(Protocol):
    """Answers rows.

    capacity: rows worth having in flight
    """

    @property
    def capacity(self) -> int: ...

    def ask(self, row: Row, deliver: Callable[[Outcome], None]) -> Callable[[], None]:
        """Ask a row. Returns what cancels it.

        deliver: takes its record or its error, from any thread; a BatchEnded ends the batch
        """

    def close(self) -> None:
        """End, once no row is in flight."""


@dataclass
class Count:
    """Rows so far: answered in this run, failed (in earlier runs too), and skipped because the output has them."""

    answered: int = 0
    failed: int = 0
    skipped: int = 0
    failed_before: int = 0


@dataclass(frozen=True)
class Answered:
    """The outcome of the row at a place among those that this run asks."""

    place: int
    outcome: Outcome


class Inbox:
    """Events in the order in which they came, from any thread."""

    def __init__(self) -> None:
        self.events: SimpleQueue[Line | Answered] = SimpleQueue()
        self.arrival = threading.Event()

    def put(self, event: Line | Answered) -> None:
        self.events.put(event)
        self.arrival.set()

    def empty(self) -> bool:
        return self.events.empty()

    def wait(self) -> None:
        """Wait for an event, for a moment only: a single long wait would miss a Ctrl-C that came just before."""
        self.arrival.clear()
        if self.events.empty():
            self.arrival.wait(SLICE_SECONDS)

    def take(self) -> Line | Answered | None:
        """Take the oldest event, or None."""
        try:
            return self.events.get_nowait()
        except Empty:
            return None


@dataclass
class InFlight:
    """A row that the engine has. deadline: on the clock of `time.monotonic`, None for none."""

    cancel: Callable[[], None]
    deadline: float | None


def run_rows(
    source: Source,
    has_documents: bool,
    engine: RowEngine,
    write: Callable[[dict[str, Any]], None],
    finished: Finished,
    count: Count,
    step: Callable[[], None] = lambda: None,
    ordered: bool = True,
    row_seconds: float | None = None,
    repeated: Container[str | int] | None = (),
) -> None:
    """Let an engine answer the lines of a source, and write their records.

    ordered: in the order of the lines; otherwise as soon as they are there
    finished: rows of earlier runs, which are skipped; what is left of it at the end is not in the input
    count: kept up to date; step: called after every row; row_seconds: after which a row fails
    repeated: as in `identity_of`

    Raises SpecprefillError where the engine cannot go on; rows that are not written are then not answered.
    """
    inbox = Inbox()
    request = source(inbox.put)
    rows = Rows(engine, inbox, Output(write, count, step, ordered, repeated), row_seconds)
    number, requested, ended = 0, False, False
    try:
        while not ended or rows.output.pending:
            # What is answered is written before more is read, which may wait.
            if not (ended or requested) and inbox.empty() and rows.output.pending < READ_AHEAD * engine.capacity:
                requested = True
                request()
            inbox.wait()
            # An event that was taken must not be lost to a Ctrl-C.
            with deferred_signals(insistent=True):
                event = inbox.take()
                if isinstance(event, Answered):
                    rows.finish(event.place, event.outcome)
                elif event is not None:
                    number, requested, ended = number + 1, False, not event.text
                    row = parse_line(event.text, number, has_documents)
                    if row is not None and not skip(row, finished, count):
                        rows.add(row)
                rows.fail_late_ones()
    except KeyboardInterrupt:
        rows.keep_delivered()
        raise
    finally:
        for held in rows.in_flight.values():
            held.cancel()


@dataclass
class Rows:
    """The rows between their lines and their records: those that wait, and at most `engine.capacity` in flight."""

    engine: RowEngine
    inbox: Inbox
    output: Output
    row_seconds: float | None
    waiting: deque[tuple[int, Row]] = field(default_factory=deque)
    in_flight: dict[int, InFlight] = field(default_factory=dict)

    def add(self, row: Row | BadRow) -> None:
        """Take the next row."""
        place = self.output.add(row)
        if isinstance(row, BadRow):
            self.output.finish(place, row.error)
            return
        self.waiting.append((place, row))
        self.submit()

    def submit(self) -> None:
        """Ask as many rows as the engine has room for."""
        while self.waiting and len(self.in_flight) < self.engine.capacity:
            place, row = self.waiting.popleft()
            deadline = None if self.row_seconds is None else time.monotonic() + self.row_seconds

            def deliver(outcome: Outcome, place: int = place) -> None:
                self.inbox.put(Answered(place, outcome))

            self.in_flight[place] = InFlight(self.engine.ask(row, deliver), deadline)

    def finish(self, place: int, outcome: Outcome) -> None:
        """Take the outcome of a row; one that was given up has another already."""
        if isinstance(outcome, BatchEnded | KeyboardInterrupt):
            raise outcome
        if self.in_flight.pop(place, None) is not None:
            self.output.finish(place, outcome)
            self.submit()

    def keep_delivered(self) -> None:
        """Write what the engine has delivered already, and ask nothing more."""
        while (event := self.inbox.take()) is not None:
            if isinstance(event, Line) or isinstance(event.outcome, BatchEnded | KeyboardInterrupt):
                continue
            if self.in_flight.pop(event.place, None) is not None:
                self.output.finish(event.place, event.outcome)

    def fail_late_ones(self) -> None:
        """Give up the rows that take too long."""
        now = time.monotonic()
        late = [place for place, row in self.in_flight.items() if row.deadline is not None and row.deadline < now]
        for place in late:
            self.in_flight[place].cancel()
            self.finish(place, RowTimeout(f"not answered within {self.row_seconds:g} s; raise --row-timeout"))


class Output:
    """Writes the records of rows: in the order of the rows, so that a record that is early waits, or as they come.

    pending: rows that are not written
    """

    def __init__(
        self,
        write: Callable[[dict[str, Any]], None],
        count: Count,
        step: Callable[[], None],
        ordered: bool,
        repeated: Container[str | int] | None,
    ) -> None:
        self.write, self.count, self.step, self.ordered, self.repeated = write, count, step, ordered, repeated
        # The oldest row first; a record, once there is one.
        self.rows: dict[int, tuple[Row | BadRow, dict[str, Any] | None]] = {}
        self.added = 0

    @property
    def pending(self) -> int:
        return len(self.rows)

    def add(self, row: Row | BadRow) -> int:
        """Take the next row; its place."""
        self.rows[self.added] = row, None
        self.added += 1
        return self.added - 1

    def finish(self, place: int, outcome: Outcome) -> None:
        """Take the record of a row, or why it has none, and write what can be written."""
        row, _ = self.rows[place]
        identity = identity_of(row, self.repeated)
        record = error_record(outcome, identity) if isinstance(outcome, BaseException) else outcome | identity
        if not self.ordered:
            self.put(place, record)
            return
        self.rows[place] = row, record
        while self.rows:
            oldest, (_, early) = next(iter(self.rows.items()))
            if early is None:
                return
            self.put(oldest, early)

    def put(self, place: int, record: dict[str, Any]) -> None:
        """Write the record of a row, which is then done."""
        with deferred_signals(insistent=True):
            self.write(record)
            self.count.answered += 1
            self.count.failed += "error" in record
        del self.rows[place]
        self.step()


def skip(row: Row | BadRow, finished: Finished, count: Count) -> bool:
    """Whether the output has this row already, which is then counted."""
    failed = finished.take(row)
    if failed is None:
        return False
    count.skipped += 1
    count.failed += failed
    count.failed_before += failed
    return True


def error_record(error: BaseException, identity: dict[str, Any]) -> dict[str, Any]:
    """A failed row's record, with the error's type and message."""
    message = " ".join(str(error).split()) or type(error).__name__
    name = (error.name if isinstance(error, SpecprefillError) else "") or type(error).__name__
    return {"schema": SCHEMA, **identity, "error": {"type": name, "message": message}}

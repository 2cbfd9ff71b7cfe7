"""The loop of a batch: lines in, at most so many requests in flight, rows out in their order."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from specprefill_cli.batching.output import Finished
from specprefill_cli.batching.rows import Row, identity_of, parse_line
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.record import SCHEMA
from specprefill_cli.signals import SLICE_SECONDS, deferred_signals

# Rows that may be read ahead of the oldest one that is not written, for each one in flight.
READ_AHEAD = 4

Outcome = dict[str, Any] | BaseException
# A line of the input, empty at its end; the error that ended the reading; or a row's place and its outcome.
Event = bytes | Exception | tuple[int, Outcome]


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


@dataclass
class PendingRow:
    """A row that is not written yet.

    cancel: ends it at the engine, once that has it; deadline: then on the clock of `time.monotonic`, None for none
    record: once there is one, until those of earlier rows are written
    """

    row: Row
    cancel: Callable[[], None] = lambda: None
    deadline: float | None = None
    record: dict[str, Any] | None = None


def read_lines(lines: Iterable[bytes], requests: threading.Semaphore, put: Callable[[Event], None]) -> None:
    """Deliver one line for each request, because reading a pipe may wait while answers come."""
    try:
        for line in lines:
            requests.acquire()
            put(line)
        requests.acquire()
        put(b"")
    except Exception as error:
        put(error)


def run_rows(
    lines: Iterable[bytes],
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
    """Let an engine answer lines, and write their records.

    ordered: in the order of the lines; otherwise as soon as they are there
    finished: rows of earlier runs; they are skipped, and what is left of them at the end is not in the input
    count: kept up to date; step: called after every row; row_seconds: after which a row fails
    repeated: as in `identity_of`

    Raises SpecprefillError where the engine cannot go on; rows that are not written are then not answered.
    """
    batch = Batch(engine, write, count, step, ordered, row_seconds, repeated)
    requests = threading.Semaphore(0)
    threading.Thread(target=read_lines, args=(lines, requests, batch.put), name="input", daemon=True).start()
    number, requested, ended = 0, False, False
    try:
        while not ended or batch.pending:
            # Answers are written before more lines are read, because reading may wait.
            has_room = len(batch.pending) < READ_AHEAD * engine.capacity
            if has_room and not (ended or requested) and not batch.events:
                requested = True
                requests.release()
            batch.wait()
            # An event that was taken must not be lost to a Ctrl-C.
            with deferred_signals(insistent=True):
                event = batch.next_event()
                if isinstance(event, Exception):
                    raise event
                if isinstance(event, tuple):
                    batch.take(*event)
                elif event is not None:
                    number, requested, ended = number + 1, False, not event
                    row = parse_line(event, number, has_documents)
                    if row is not None and not skip(row, finished, count):
                        batch.add(row)
                batch.fail_late_rows()
    except KeyboardInterrupt:
        batch.keep_delivered()
        raise
    finally:
        for pending in batch.in_flight.values():
            pending.cancel()


@dataclass
class Batch:
    """The rows between their lines and their records: those that wait, and at most `engine.capacity` in flight.

    pending: rows that are not written, by their place, the oldest one first; added: how many there were so far
    events: from the reading thread and the engine, in the order in which they came; arrival: set when one comes
    """

    engine: RowEngine
    write: Callable[[dict[str, Any]], None]
    count: Count
    step: Callable[[], None]
    ordered: bool
    row_seconds: float | None
    repeated: Container[str | int] | None
    events: deque[Event] = field(default_factory=deque)
    arrival: threading.Event = field(default_factory=threading.Event)
    pending: dict[int, PendingRow] = field(default_factory=dict)
    waiting: deque[int] = field(default_factory=deque)
    in_flight: dict[int, PendingRow] = field(default_factory=dict)
    added: int = 0

    def put(self, event: Event) -> None:
        """Add an event, from any thread."""
        self.events.append(event)
        self.arrival.set()

    def wait(self) -> None:
        """Wait for an event, for a moment only: a single long wait would miss a Ctrl-C that came just before."""
        self.arrival.clear()
        if not self.events:
            self.arrival.wait(SLICE_SECONDS)

    def next_event(self) -> Event | None:
        """Take the oldest event, or None."""
        return self.events.popleft() if self.events else None

    def add(self, row: Row) -> None:
        """Take the next row."""
        place, self.added = self.added, self.added + 1
        self.pending[place] = PendingRow(row)
        if row.error is not None:
            self.finish(place, row.error)
        else:
            self.waiting.append(place)
            self.submit()

    def submit(self) -> None:
        """Ask as many rows as the engine has room for."""
        while self.waiting and len(self.in_flight) < self.engine.capacity:
            place = self.waiting.popleft()
            pending = self.in_flight[place] = self.pending[place]
            if self.row_seconds is not None:
                pending.deadline = time.monotonic() + self.row_seconds

            def deliver(outcome: Outcome, place: int = place) -> None:
                self.put((place, outcome))

            pending.cancel = self.engine.ask(pending.row, deliver)

    def take(self, place: int, outcome: Outcome) -> None:
        """Take the outcome of a row. A row that was given up has its outcome already."""
        if isinstance(outcome, BatchEnded | KeyboardInterrupt):
            raise outcome
        if self.in_flight.pop(place, None) is not None:
            self.finish(place, outcome)
            self.submit()

    def keep_delivered(self) -> None:
        """Write what the engine has delivered already, and ask nothing more."""
        self.waiting.clear()
        while (event := self.next_event()) is not None:
            if isinstance(event, tuple) and not isinstance(event[1], BatchEnded | KeyboardInterrupt):
                self.take(*event)

    def fail_late_rows(self) -> None:
        """Give up the rows that take too long."""
        now = time.monotonic()
        late = [place for place, row in self.in_flight.items() if row.deadline is not None and row.deadline < now]
        for place in late:
            self.in_flight[place].cancel()
            self.take(place, RowTimeout(f"not answered within {self.row_seconds:g} s; raise --row-timeout"))

    def finish(self, place: int, outcome: Outcome) -> None:
        """Write the record of a row, or its error. In order, an early record waits for those before it."""
        identity = identity_of(self.pending[place].row, self.repeated)
        record = error_record(outcome, identity) if isinstance(outcome, BaseException) else outcome | identity
        self.pending[place].record = record
        places = [*self.pending] if self.ordered else [place]
        for next_place in places:
            next_record = self.pending[next_place].record
            if next_record is None:
                return
            with deferred_signals(insistent=True):
                self.write(next_record)
                self.count.answered += 1
                self.count.failed += "error" in next_record
            del self.pending[next_place]
            self.step()


def skip(row: Row, finished: Finished, count: Count) -> bool:
    """Whether the output has this row already; count it then."""
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

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
from specprefill_cli.batching.rows import Line, Row, Source, identity_of, parse_line
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
class Held:
    """A row that is not written yet.

    cancel: ends it at the engine, once that has it; deadline: then on the clock of `time.monotonic`, None for none
    record: once there is one, until those of earlier rows are written
    """

    row: Row
    cancel: Callable[[], None] = lambda: None
    deadline: float | None = None
    record: dict[str, Any] | None = None


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
    finished: rows of earlier runs; they are skipped, and what is left of them at the end is not in the input
    count: kept up to date; step: called after every row; row_seconds: after which a row fails
    repeated: as in `identity_of`

    Raises SpecprefillError where the engine cannot go on; rows that are not written are then not answered.
    """
    inbox = Inbox()
    request = source(inbox.put)
    batch = Batch(engine, inbox, write, count, step, ordered, row_seconds, repeated)
    number, requested, ended = 0, False, False
    try:
        while not ended or batch.pending:
            # What is answered is written before more is read: reading may wait.
            if not (ended or requested) and inbox.empty() and len(batch.pending) < READ_AHEAD * engine.capacity:
                requested = True
                request()
            inbox.wait()
            # An event that was taken must not be lost to a Ctrl-C.
            with deferred_signals(insistent=True):
                event = inbox.take()
                if isinstance(event, Answered):
                    batch.take(event)
                elif event is not None:
                    number, requested, ended = number + 1, False, not event.text
                    row = parse_line(event.text, number, has_documents)
                    if row is not None and not skip(row, finished, count):
                        batch.add(row)
                batch.fail_late_ones()
    except KeyboardInterrupt:
        batch.keep_delivered()
        raise
    finally:
        for held in batch.in_flight.values():
            held.cancel()


@dataclass
class Batch:
    """The rows between their lines and their records: those that wait, and at most `engine.capacity` in flight.

    pending: rows that are not written, by their place, the oldest one first; added: how many there were so far
    """

    engine: RowEngine
    inbox: Inbox
    write: Callable[[dict[str, Any]], None]
    count: Count
    step: Callable[[], None]
    ordered: bool
    row_seconds: float | None
    repeated: Container[str | int] | None
    pending: dict[int, Held] = field(default_factory=dict)
    waiting: deque[int] = field(default_factory=deque)
    in_flight: dict[int, Held] = field(default_factory=dict)
    added: int = 0

    def add(self, row: Row) -> None:
        """Take the next row."""
        place, self.added = self.added, self.added + 1
        self.pending[place] = Held(row)
        if row.error is not None:
            self.finish(place, row.error)
        else:
            self.waiting.append(place)
            self.submit()

    def submit(self) -> None:
        """Ask as many rows as the engine has room for."""
        while self.waiting and len(self.in_flight) < self.engine.capacity:
            place = self.waiting.popleft()
            held = self.in_flight[place] = self.pending[place]
            if self.row_seconds is not None:
                held.deadline = time.monotonic() + self.row_seconds

            def deliver(outcome: Outcome, place: int = place) -> None:
                self.inbox.put(Answered(place, outcome))

            held.cancel = self.engine.ask(held.row, deliver)

    def take(self, event: Answered) -> None:
        """Take the outcome of a row; one that was given up has another already."""
        if isinstance(event.outcome, BatchEnded | KeyboardInterrupt):
            raise event.outcome
        if self.in_flight.pop(event.place, None) is not None:
            self.finish(event.place, event.outcome)
            self.submit()

    def keep_delivered(self) -> None:
        """Write what the engine has delivered already, and ask nothing more."""
        self.waiting.clear()
        while (event := self.inbox.take()) is not None:
            if isinstance(event, Answered) and not isinstance(event.outcome, BatchEnded | KeyboardInterrupt):
                self.take(event)

    def fail_late_ones(self) -> None:
        """Give up the rows that take too long."""
        now = time.monotonic()
        late = [place for place, held in self.in_flight.items() if held.deadline is not None and held.deadline < now]
        for place in late:
            self.in_flight[place].cancel()
            self.take(Answered(place, RowTimeout(f"not answered within {self.row_seconds:g} s; raise --row-timeout")))

    def finish(self, place: int, outcome: Outcome) -> None:
        """Write the record of a row, or why it has none; in order, one that is early waits for those before it."""
        identity = identity_of(self.pending[place].row, self.repeated)
        record = error_record(outcome, identity) if isinstance(outcome, BaseException) else outcome | identity
        self.pending[place].record = record
        places = [*self.pending] if self.ordered else [place]
        for written in places:
            early = self.pending[written].record
            if early is None:
                return
            with deferred_signals(insistent=True):
                self.write(early)
                self.count.answered += 1
                self.count.failed += "error" in early
            del self.pending[written]
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

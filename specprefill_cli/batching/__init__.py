"""The loop of a batch: lines in, a bounded number of requests in flight, rows out in order. Does not import torch."""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from specprefill_cli.batching.output import Finished, output_row
from specprefill_cli.batching.rows import Row, parse_line, settings_with
from specprefill_cli.engine.http import ServerEnded
from specprefill_cli.engine.request import LAST, Engine, Event, Failed, QueueFull, Request, is_device_failure
from specprefill_cli.errors import SpecprefillError, first_line
from specprefill_cli.settings import Settings
from specprefill_cli.signals import SLICE_SECONDS, deferred_signals

# Unwritten rows held in memory, at most, per row that the engine has in flight.
READ_AHEAD = 4
AGAIN = "run the same command with --out and --resume to go on"


class BatchEnded(SpecprefillError):
    """The engine can answer nothing more; the remaining rows have no answer."""


@dataclass
class Count:
    """Rows so far: answered in this run, failed (in earlier runs too), and skipped because the output holds them."""

    answered: int = 0
    failed: int = 0
    skipped: int = 0


@dataclass(kw_only=True)
class Batch:
    """Lets an engine answer rows, at most `engine.capacity` at once, and writes records in the order of the lines.

    settings, documents: defaults for rows without their own
    finished: rows of earlier runs; they are skipped, and those left at the end are not in the input
    step: called after every row; room: for lines to read, so that few rows wait in memory
    pending: unwritten rows by the number of their line, the oldest first; waiting: numbers of such rows
    records: of pending rows that wait for earlier ones, by number
    in_flight: the engine's tickets by number
    events: a line of the input, empty at its end; the error that ended reading; or a row's number and its last event
    """

    engine: Engine
    settings: Settings
    write: Callable[[dict[str, Any]], None]
    documents: tuple[str, ...] = ()
    finished: Finished = field(default_factory=Finished)
    step: Callable[[], None] = lambda: None
    count: Count = field(default_factory=Count)
    events: SimpleQueue[bytes | Exception | tuple[int, Event]] = field(default_factory=SimpleQueue)
    pending: dict[int, Row] = field(default_factory=dict)
    records: dict[int, dict[str, Any]] = field(default_factory=dict)
    waiting: deque[int] = field(default_factory=deque)
    in_flight: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.room = threading.Semaphore(READ_AHEAD * self.engine.capacity)

    def run(self, lines: Iterable[bytes]) -> None:
        """Answer the rows in lines. Raises BatchEnded if the engine cannot go on."""
        threading.Thread(target=self.read_lines, args=(lines,), name="input", daemon=True).start()
        number, ended = 0, False
        try:
            while not ended or self.pending:
                # Ctrl-C must not lose an event that was taken from the queue.
                with deferred_signals(insistent=True):
                    event = self.next_event()
                    if isinstance(event, Exception):
                        raise event
                    if isinstance(event, tuple):
                        self.take(*event)
                    elif event is not None:
                        number, ended = number + 1, not event
                        self.add(number, parse_line(event, number, self.documents))
        finally:
            for ticket in self.in_flight.values():
                self.engine.cancel(ticket)

    def read_lines(self, lines: Iterable[bytes]) -> None:
        """Queue lines while there is room, in a thread of its own: reading a pipe may block while answers arrive."""
        try:
            for line in lines:
                self.room.acquire()
                self.events.put(line)
            self.events.put(b"")
        except Exception as error:
            self.events.put(error)

    def next_event(self) -> bytes | Exception | tuple[int, Event] | None:
        """Take the oldest event; None after a short wait, because signals are held back meanwhile."""
        with suppress(Empty):
            return self.events.get(timeout=SLICE_SECONDS)
        return None

    def on_event(self, number: int, event: Event) -> None:
        """Queue a row's last event and ignore the others; from any thread."""
        if isinstance(event, LAST):
            self.events.put((number, event))

    def add(self, number: int, row: Row | None) -> None:
        """Add the next row, unless the output holds it already. None: a blank line."""
        failed_earlier = self.finished.take(row.row_hash) if row is not None else None
        if row is None or failed_earlier is not None:
            self.room.release()
            self.count.skipped += row is not None
            self.count.failed += failed_earlier is True
            return
        self.pending[number] = row
        if row.error is not None:
            self.finish(number, Failed(row.error))
        else:
            self.waiting.append(number)
            self.submit()

    def submit(self) -> None:
        """Submit as many rows as the engine has room for."""
        while self.waiting and len(self.in_flight) < self.engine.capacity:
            number = self.waiting.popleft()
            row = self.pending[number]
            try:
                settings = settings_with(self.settings, row.overrides, f"row {row.identifier}")
                request = Request(documents=row.documents or self.documents, question=row.question, settings=settings)
                self.in_flight[number] = self.engine.submit(request, partial(self.on_event, number))
            except SpecprefillError as error:
                self.finish(number, Failed(error))
                continue
            except QueueFull:
                # The engine has failed. An error of a row in flight may say why.
                if self.in_flight:
                    self.waiting.appendleft(number)
                    return
                raise BatchEnded(f"the engine has ended; {AGAIN}") from None

    def take(self, number: int, event: Event) -> None:
        """Finish a row with its last event."""
        if isinstance(event, Failed):
            check_engine(event.error)
        del self.in_flight[number]
        self.finish(number, event)
        self.submit()

    def finish(self, number: int, event: Event) -> None:
        """Write the record of a row, or its error, once those before it are written."""
        self.records[number] = output_row(self.pending[number], event)
        while self.pending and (oldest := next(iter(self.pending))) in self.records:
            record = self.records.pop(oldest)
            with deferred_signals(insistent=True):
                self.write(record)
                self.count.answered += 1
                self.count.failed += "error" in record
            del self.pending[oldest]
            self.room.release()
            self.step()


def check_engine(error: BaseException) -> None:
    """Raise BatchEnded or KeyboardInterrupt for an error that concerns more than its row."""
    if isinstance(error, BatchEnded | KeyboardInterrupt):
        raise error
    if isinstance(error, ServerEnded):
        raise BatchEnded(f"the server has ended; {AGAIN}")
    if is_device_failure(error):
        cause = f"the device failed ({first_line(error)}), and this process can answer nothing more"
        raise BatchEnded(f"{cause}; {AGAIN} in a new one")

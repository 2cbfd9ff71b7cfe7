"""Rows answered by the engine of this process, which works in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from specprefill_cli.batching.loop import BatchEnded, Outcome
from specprefill_cli.batching.rows import Row, row_settings
from specprefill_cli.byte_cache import ByteCache
from specprefill_cli.documents.document import KEPT_BYTES, Collection
from specprefill_cli.engine.local import LocalEngine
from specprefill_cli.engine.question import is_device_failure
from specprefill_cli.engine.request import Done, Event, Failed, QueueFull, Request
from specprefill_cli.errors import SpecprefillError, first_line
from specprefill_cli.settings import Settings

Reader = Callable[[tuple[str, ...]], Collection]
# Seconds that the end of a batch waits for the pass in hand.
CLOSING = 3.0


class LocalRows:
    """Answers rows with an engine, as many at once as it takes. settings: of rows that bring none."""

    def __init__(self, engine: LocalEngine, settings: Settings) -> None:
        self.engine, self.settings = engine, settings
        # A thread, because the main one waits for lines of the input, and for Ctrl-C.
        self.thread = threading.Thread(target=engine.run, name="engine", daemon=True)
        self.thread.start()

    @property
    def capacity(self) -> int:
        return self.engine.capacity

    def ask(self, row: Row, deliver: Callable[[Outcome], None]) -> Callable[[], None]:
        try:
            settings = row_settings(self.settings, row)
            request = Request(documents=row.documents, question=row.question, settings=settings)
            ticket = self.engine.submit(request, partial(take, row, deliver))
        except SpecprefillError as error:
            deliver(error)
            return lambda: None
        except QueueFull:
            # It has failed, with an error that ended only the rows that it had.
            deliver(BatchEnded("the engine has ended; run the same command with --out and --resume to go on"))
            return lambda: None
        return partial(self.engine.cancel, ticket)

    def close(self) -> None:
        for ticket in [*self.engine.waiting, *self.engine.running, self.engine.prefilling]:
            if ticket is not None:
                self.engine.cancel(ticket)
        self.engine.close()
        self.thread.join(CLOSING)


def take(row: Row, deliver: Callable[[Outcome], None], event: Event) -> None:
    """Deliver the record of a row, or its error; a failed device, which is no fault of the row, ends the batch."""
    if isinstance(event, Done):
        record = event.result.to_json()
        deliver({**record, "warnings": [*record["warnings"], *row.warnings]})
    elif isinstance(event, Failed):
        deliver(device_failed(event.error) if is_device_failure(event.error) else event.error)


def device_failed(error: BaseException) -> BatchEnded:
    """The end of a batch whose device has failed."""
    return BatchEnded(
        f"the device failed ({first_line(error)}), and this process can answer nothing more; run the same command "
        "with --out and --resume to go on in a new one"
    )


def own_or_read(own: Collection | None, read: Reader) -> Reader:
    """A reader that knows the batch's own documents, for rows that name none.

    It reads each of the latest lists of documents once, also one that cannot be read.
    """
    outcomes: ByteCache[Collection | SpecprefillError] = ByteCache(
        KEPT_BYTES, lambda outcome: outcome.bytes if isinstance(outcome, Collection) else 0
    )
    lock = threading.Lock()

    def outcome_of(names: tuple[str, ...]) -> Collection | SpecprefillError:
        try:
            return read(names)
        except SpecprefillError as error:
            return error

    def remembered(names: tuple[str, ...]) -> Collection:
        if not names:
            assert own is not None, "`parse_line` refuses rows without documents"
            return own
        with lock:
            outcome = outcomes.find_or(names, lambda: outcome_of(names))
        if isinstance(outcome, SpecprefillError):
            raise outcome
        return outcome

    return remembered

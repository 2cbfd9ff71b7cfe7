"""Rows answered by an engine: of this process, of this user's server, or of an endpoint. Imports no torch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from specprefill_cli.batching.loop import BatchEnded, Outcome
from specprefill_cli.batching.rows import Row, row_settings
from specprefill_cli.byte_cache import ByteCache
from specprefill_cli.documents.document import KEPT_BYTES, Collection
from specprefill_cli.engine.http import ServerEnded
from specprefill_cli.engine.request import Done, Engine, Event, Failed, QueueFull, Request, is_device_failure
from specprefill_cli.errors import SpecprefillError, first_line
from specprefill_cli.settings import Settings

Reader = Callable[[tuple[str, ...]], Collection]
AGAIN = "run the same command with --out and --resume to go on"


@dataclass(frozen=True)
class EngineRows:
    """Answers rows with an engine. settings, documents: of rows that bring none."""

    engine: Engine
    settings: Settings
    documents: Collection | tuple[str, ...]

    @property
    def capacity(self) -> int:
        return self.engine.capacity

    def ask(self, row: Row, deliver: Callable[[Outcome], None]) -> Callable[[], None]:
        try:
            settings = row_settings(self.settings, row)
            request = Request(documents=row.documents or self.documents, question=row.question, settings=settings)
            ticket = self.engine.submit(request, partial(take, row, deliver))
        except SpecprefillError as error:
            deliver(error)
            return lambda: None
        except QueueFull:
            # It has failed, with an error that ended only the rows that it had.
            deliver(BatchEnded(f"the engine has ended; {AGAIN}"))
            return lambda: None
        return partial(self.engine.cancel, ticket)

    def close(self) -> None:
        self.engine.close()


def take(row: Row, deliver: Callable[[Outcome], None], event: Event) -> None:
    """Deliver the record of a row, or its error; an engine that can answer nothing more ends the batch."""
    if isinstance(event, Done):
        record = event.result.to_json()
        deliver({**record, "warnings": [*record["warnings"], *row.warnings]})
    elif isinstance(event, Failed):
        deliver(outcome_of(event.error))


def outcome_of(error: BaseException) -> BaseException:
    """The error of a row, or the end of the batch where the row is not to blame."""
    if isinstance(error, ServerEnded):
        return BatchEnded(f"the server has ended; {AGAIN}")
    if is_device_failure(error):
        return BatchEnded(
            f"the device failed ({first_line(error)}), and this process can answer nothing more; {AGAIN} in a new one"
        )
    return error


def read_once(read: Reader) -> Reader:
    """A reader that reads each of the latest lists of documents once, also one that cannot be read."""
    outcomes: ByteCache[Collection | SpecprefillError] = ByteCache(
        KEPT_BYTES, lambda outcome: outcome.bytes if isinstance(outcome, Collection) else 0
    )
    lock = threading.Lock()

    def attempt(names: tuple[str, ...]) -> Collection | SpecprefillError:
        try:
            return read(names)
        except SpecprefillError as error:
            return error

    def cached_read(names: tuple[str, ...]) -> Collection:
        with lock:
            outcome = outcomes.find_or(names, lambda: attempt(names))
        if isinstance(outcome, SpecprefillError):
            raise outcome
        return outcome

    return cached_read

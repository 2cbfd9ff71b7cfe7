"""Rows answered by an endpoint: the draft reads for one at a time, and the server answers several."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from specprefill_cli.batching.local import Reader
from specprefill_cli.batching.loop import Outcome
from specprefill_cli.batching.rows import Row, row_settings
from specprefill_cli.engine.request import Cancelled
from specprefill_cli.settings import Settings

if TYPE_CHECKING:
    from specprefill_cli.answering.session import Session

# Rows that wait at a time where nothing is said: servers answer as many together without making each much slower.
ROWS_AT_ONCE = 8
# Seconds that the end of a batch waits for answers that are on their way.
CLOSING = 3.0


@dataclass
class EndpointRows:
    """Asks rows, each in a thread of its own.

    session: of `open_endpoint`; settings: of rows that bring none; read: reads a row's documents
    capacity: rows in flight; asking: the threads whose rows were not given up
    """

    session: Session
    settings: Settings
    read: Reader
    capacity: int = ROWS_AT_ONCE
    asking: set[threading.Thread] = field(default_factory=set)
    closed: threading.Event = field(default_factory=threading.Event)

    def ask(self, row: Row, deliver: Callable[[Outcome], None]) -> Callable[[], None]:
        cancelled = threading.Event()

        def run() -> None:
            try:
                outcome: Outcome = self.record(row, cancelled)
            except BaseException as error:
                outcome = error
            self.asking.discard(thread)
            deliver(outcome)

        # No pool: a row that was given up may wait for a silent server, and neither another row nor the end waits for it.
        thread = threading.Thread(target=run, name="row", daemon=True)
        self.asking.add(thread)
        thread.start()

        def cancel() -> None:
            cancelled.set()
            self.asking.discard(thread)

        return cancel

    def record(self, row: Row, cancelled: threading.Event) -> dict[str, Any]:
        """The record of a row. Raises Cancelled between two pieces of an answer that nobody waits for."""
        settings = row_settings(self.settings, row)
        stream = self.session.ask(self.read(row.documents), row.question, settings)
        # Its end closes the connection, and writes the draft's cache, in this thread.
        with closing(iter(stream)) as pieces:
            for _ in pieces:
                if cancelled.is_set() or self.closed.is_set():
                    raise Cancelled
        record = stream.result().to_json()
        return {**record, "warnings": [*record["warnings"], *row.warnings]}

    def close(self) -> None:
        self.closed.set()
        deadline = time.monotonic() + CLOSING
        for thread in list(self.asking):
            thread.join(max(0.0, deadline - time.monotonic()))

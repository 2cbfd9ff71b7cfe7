"""Rows answered by this user's running server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from specprefill_cli.batching.loop import BatchEnded, Outcome
from specprefill_cli.batching.rows import Row, row_settings
from specprefill_cli.engine.http import HttpEngine, ServerEnded, UnixConnection
from specprefill_cli.engine.request import Request
from specprefill_cli.settings import Settings

if TYPE_CHECKING:
    from concurrent.futures import Future


@dataclass
class HttpRows:
    """Posts rows, each on a connection of its own. settings, own: of rows that bring none; capacity: posts at a time."""

    engine: HttpEngine
    settings: Settings
    own: tuple[str, ...]
    capacity: int
    in_flight: set[Callable[[], None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.posting = ThreadPoolExecutor(self.capacity, "post")

    def ask(self, row: Row, deliver: Callable[[Outcome], None]) -> Callable[[], None]:
        connections: list[UnixConnection] = []
        cancelled = threading.Event()

        def connected(connection: UnixConnection) -> None:
            connections.append(connection)
            if cancelled.is_set():
                raise CancelledError

        def post() -> dict[str, Any]:
            settings = row_settings(self.settings, row)
            request = Request(documents=row.documents or self.own, question=row.question, settings=settings)
            record = self.engine.record(request, connected)
            return {**record, "warnings": [*record["warnings"], *row.warnings]}

        def take(future: Future[dict[str, Any]]) -> None:
            self.in_flight.discard(cancel)
            # Nobody waits for it, and what it ended with is the cancelling's own doing.
            if cancelled.is_set() or future.cancelled():
                return
            error = future.exception()
            if isinstance(error, ServerEnded):
                deliver(BatchEnded("the server has ended; run the same command with --out and --resume to go on"))
            else:
                deliver(error if error is not None else future.result())

        def cancel() -> None:
            cancelled.set()
            future.cancel()
            for connection in connections:
                # Its end tells the server; closing it would not wake the thread that reads from it.
                with suppress(OSError, AttributeError):
                    connection.sock.shutdown(socket.SHUT_RDWR)

        self.in_flight.add(cancel)
        future = self.posting.submit(post)
        future.add_done_callback(take)
        return cancel

    def close(self) -> None:
        # First those that have not begun: the end of a post would make room for one of them.
        self.posting.shutdown(wait=False, cancel_futures=True)
        for cancel in [*self.in_flight]:
            cancel()

"""A request to the engine, as a task of the event loop waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType

from specprefill_cli.engine.local import LocalEngine
from specprefill_cli.engine.request import LAST, Event, Request


class QueueTimeout(Exception):
    """The request has waited longer than it may."""


class Submission:
    """Submits a request, and iterates over its events; leaving the block before the last one cancels it.

    limit: requests that may wait already; patience: seconds that this one may wait; None: any number

    Raises QueueFull; while it is iterated over QueueTimeout.
    """

    def __init__(
        self, engine: LocalEngine, request: Request, limit: int | None = None, patience: float | None = None
    ) -> None:
        self.engine = engine
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.patience = patience
        self.ended = False
        loop = asyncio.get_running_loop()

        def deliver(event: Event) -> None:
            loop.call_soon_threadsafe(self.events.put_nowait, event)

        self.ticket = engine.submit(request, deliver, limit)

    def cancel(self) -> None:
        """Interrupt the request, which still has a last event."""
        self.engine.cancel(self.ticket)

    async def __aenter__(self) -> Submission:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self.ended:
            self.cancel()

    async def __aiter__(self) -> AsyncIterator[Event]:
        while not self.ended:
            event = await self.next_event()
            self.ended = isinstance(event, LAST)
            yield event

    async def next_event(self) -> Event:
        """The next event. Raises QueueTimeout where the request has not begun in time."""
        while self.ticket.started is None and self.patience is not None:
            try:
                return await asyncio.wait_for(self.events.get(), self.patience)
            except TimeoutError:
                if self.ticket.started is None:
                    raise QueueTimeout from None
        return await self.events.get()

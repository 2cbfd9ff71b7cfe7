"""A job of the engine, as a task of the event loop waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType

from specprefill_cli.serving.engine import Engine, Job
from specprefill_cli.serving.messages import LAST, Payload


class QueueTimeout(Exception):
    """The job has waited longer than it may."""


class Submission:
    """Submits a job, and iterates over its payloads; leaving the block before the last one cancels it.

    limit: jobs that may wait already; patience: seconds that the job may wait; None: any number

    Raises QueueFull; while it is iterated over QueueTimeout.
    """

    def __init__(self, engine: Engine, job: Job, limit: int | None = None, patience: float | None = None) -> None:
        self.engine = engine
        self.payloads: asyncio.Queue[Payload] = asyncio.Queue()
        self.patience = patience
        self.ended = False
        loop = asyncio.get_running_loop()

        def deliver(payload: Payload) -> None:
            loop.call_soon_threadsafe(self.payloads.put_nowait, payload)

        self.ticket = engine.submit(job, deliver, limit)

    def cancel(self) -> None:
        """Interrupt the job, which still has a last payload."""
        self.engine.cancel(self.ticket)

    async def __aenter__(self) -> Submission:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self.ended:
            self.cancel()

    async def __aiter__(self) -> AsyncIterator[Payload]:
        while not self.ended:
            payload = await self.next_payload()
            self.ended = isinstance(payload, LAST)
            yield payload

    async def next_payload(self) -> Payload:
        """The next payload. Raises QueueTimeout where the job has not begun in time."""
        while self.ticket.started is None and self.patience is not None:
            try:
                return await asyncio.wait_for(self.payloads.get(), self.patience)
            except TimeoutError:
                if self.ticket.started is None:
                    raise QueueTimeout from None
        return await self.payloads.get()

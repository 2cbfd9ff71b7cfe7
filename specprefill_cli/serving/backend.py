"""What the HTTP endpoints share: questions to the engine and their events, limits, errors as responses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from specprefill_cli.engine.request import Cancelled, Done, Event, Failed, QueueFull, Request
from specprefill_cli.errors import PromptTooLong, SpecprefillError, first_line
from specprefill_cli.serving.guard import ApiError, log_line

if TYPE_CHECKING:
    from specprefill_cli.answering.session import Session
    from specprefill_cli.documents.document import Collection
    from specprefill_cli.engine.local import LocalEngine
    from specprefill_cli.models.refs import EndpointRef
    from specprefill_cli.serving.metrics import Metrics

# Seconds after which a client that was turned away may ask again.
RETRY_SECONDS = 5
FAILURES = (ApiError, SpecprefillError, ClientDisconnect, Exception)
# Documents that are read at a time, beside the engine's work.
READERS = 2


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Options of `serve` that are no settings; idle_seconds: None for no limit.

    queue: questions that may wait; queue_seconds: how long one may; body_bytes: of a request
    upstream: the server that this one is a proxy of; shadow: share of thinned requests that are sent whole, too
    """

    http: str | None = None
    token_file: Path | None = None
    allowed_hosts: tuple[str, ...] = ()
    idle_seconds: float | None = None
    queue: int
    queue_seconds: float
    body_bytes: int
    log_requests: bool = False
    upstream: EndpointRef | None = None
    shadow: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Backend:
    """Answers for the HTTP endpoints.

    own: the server's documents, for questions that bring none
    about: what the server is, for its own user; started: seconds since 1970
    """

    engine: LocalEngine
    own: Collection | None
    options: ServeOptions
    metrics: Metrics
    about: Mapping[str, Any] = field(default_factory=dict)
    started: float = field(default_factory=time.time)
    reading: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(READERS))

    @property
    def session(self) -> Session:
        """The loaded pair."""
        return self.engine.session

    @property
    def pair_name(self) -> str:
        """The name of the loaded pair."""
        return self.session.pair.pair.name

    async def events(self, request: Request, patient: bool = False) -> AsyncGenerator[Event, None]:
        """The events of a question about documents that were read; leaving before the last one cancels it.

        patient: whether it waits as long as it takes, behind however many others

        Raises ApiError where the question fails, where the queue is full, and where it has waited too long.
        """
        options, arrived = self.options, asyncio.Queue[Event]()
        if options.log_requests and not isinstance(request.documents, tuple):
            names = [document.name for document in request.documents.documents]
            log_line(f"question {request.question!r} about {names}")
        loop = asyncio.get_running_loop()

        def deliver(event: Event) -> None:
            loop.call_soon_threadsafe(arrived.put_nowait, event)

        try:
            ticket = self.engine.submit(request, deliver, None if patient else options.queue)
        except QueueFull:
            raise ApiError(
                429, f"{options.queue} questions wait already; ask again later", "rate_limit_error", RETRY_SECONDS
            ) from None
        event: Event | None = None
        try:
            while not isinstance(event, Done):
                waits = ticket.started is None and not patient
                try:
                    event = await asyncio.wait_for(arrived.get(), options.queue_seconds if waits else None)
                except TimeoutError:
                    if ticket.started is not None:
                        continue
                    reason = f"the question waited for {options.queue_seconds:g} s; ask again later"
                    raise ApiError(503, reason, "overloaded", RETRY_SECONDS) from None
                if isinstance(event, Failed):
                    raise refusal(event.error)
                yield event
        finally:
            self.engine.cancel(ticket)

    async def answer(self, request: Request, patient: bool = False) -> Done:
        """Wait for the end of a question. Raises as `events`."""
        events = [event async for event in self.events(request, patient)]
        assert isinstance(events[-1], Done), "a question that fails raises"
        return events[-1]


def refusal(error: BaseException) -> ApiError:
    """The response to a question that failed; what no user can mend is told by its type alone."""
    if isinstance(error, SpecprefillError):
        kind = "prompt_too_long" if isinstance(error, PromptTooLong) else "invalid_request_error"
        return ApiError(400, str(error), kind, cause=error)
    if isinstance(error, Cancelled | ClientDisconnect):
        return ApiError(499, "the client has gone")
    log_line(f"failed with 500: {type(error).__name__}: {first_line(error)}")
    return ApiError(500, f"the server failed with {type(error).__name__}", "server_error")


async def while_connected(request: HttpRequest, work: Awaitable[Any]) -> Any:
    """The outcome of the work; it is cancelled when the client goes away first."""

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ApiError(499, "the client has gone")
    finally:
        for pending in (task, gone):
            pending.cancel()


async def event_stream(
    request: HttpRequest,
    events: AsyncGenerator[Event, None],
    written: Callable[[AsyncIterator[Event]], AsyncIterator[str]],
) -> StreamingResponse:
    """Server-sent events, of which no proxy or browser may keep a part back.

    written: writes the events after the first token. That is awaited here: a question that fails has a status of its own
    """
    await while_connected(request, anext(events))

    async def lines() -> AsyncIterator[str]:
        async with aclosing(events):
            async for line in written(events):
                yield line

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(lines(), media_type="text/event-stream", headers=headers)


async def failed(_request: HttpRequest, error: Exception) -> Response:
    """The response to a request that failed; one bad request harms no other."""
    refused = error if isinstance(error, ApiError) else refusal(error)
    if refused is error and refused.status not in (400, 499):
        log_line(f"refused with {refused.status}: {refused}")
    return refused.response()


def starlette(routes: Sequence[Route]) -> Starlette:
    """An application whose errors become responses."""
    return Starlette(routes=routes, exception_handlers=dict.fromkeys(FAILURES, failed))

"""Shared by the HTTP endpoints: questions to the engine, their events, limits, and errors as responses."""

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

# Seconds after which a refused client may ask again.
RETRY_SECONDS = 5
FAILURES = (ApiError, SpecprefillError, ClientDisconnect, Exception)
# Documents read at a time, beside the engine's work.
READERS = 2


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Options of `serve` that are no settings.

    idle_seconds: None for no limit; queue: most questions that wait; queue_seconds: longest wait of a question
    body_bytes: largest body of a request; upstream: the server that a proxy forwards to
    shadow: share of thinned requests that the proxy also sends unthinned
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
    """The engine and everything else that the HTTP endpoints share.

    documents: the server's documents, for questions that bring none
    about: describes the server to its own user; started: seconds since 1970
    """

    engine: LocalEngine
    documents: Collection | None
    options: ServeOptions
    metrics: Metrics
    about: Mapping[str, Any] = field(default_factory=dict)
    started: float = field(default_factory=time.time)
    readers: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(READERS))

    @property
    def session(self) -> Session:
        """The loaded pair."""
        return self.engine.session

    @property
    def pair_name(self) -> str:
        """The name of the loaded pair."""
        return self.session.pair.pair.name

    async def events(self, request: Request, patient: bool = False) -> AsyncGenerator[Event, None]:
        """Ask a question about documents that were read, and yield its events.

        A caller that stops before the last event cancels the question.

        patient: whether the limits of the queue do not apply

        Raises ApiError for a failed question, a full queue and too long a wait.
        """
        options, events = self.options, asyncio.Queue[Event]()
        if options.log_requests and not isinstance(request.documents, tuple):
            names = [document.name for document in request.documents.documents]
            log_line(f"question {request.question!r} about {names}")
        loop = asyncio.get_running_loop()

        def deliver(event: Event) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        try:
            ticket = self.engine.submit(request, deliver, None if patient else options.queue)
        except QueueFull:
            raise ApiError(
                429,
                f"{options.queue} questions are waiting already; ask again later",
                "rate_limit_error",
                RETRY_SECONDS,
            ) from None
        event: Event | None = None
        try:
            while not isinstance(event, Done):
                limited = ticket.started is None and not patient
                try:
                    event = await asyncio.wait_for(events.get(), options.queue_seconds if limited else None)
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
        """Ask a question, and wait for its end. Raises what `events` raises."""
        events = [event async for event in self.events(request, patient)]
        assert isinstance(events[-1], Done), "a question that fails raises"
        return events[-1]


def refusal(error: BaseException) -> ApiError:
    """Turn the error of a question into a response. The client sees only the type of an internal error."""
    if isinstance(error, SpecprefillError):
        error_type = "prompt_too_long" if isinstance(error, PromptTooLong) else "invalid_request_error"
        return ApiError(400, str(error), error_type, cause=error)
    if isinstance(error, Cancelled | ClientDisconnect):
        return ApiError(499, "the client has gone")
    log_line(f"failed with 500: {type(error).__name__}: {first_line(error)}")
    return ApiError(500, f"the server failed with {type(error).__name__}", "server_error")


async def while_connected(request: HttpRequest, work: Awaitable[Any]) -> Any:
    """Wait for the work, and cancel it when the client disconnects first."""

    async def wait_for_disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, disconnect = asyncio.ensure_future(work), asyncio.ensure_future(wait_for_disconnect())
    try:
        await asyncio.wait({task, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ApiError(499, "the client has gone")
    finally:
        for pending in (task, disconnect):
            pending.cancel()


async def event_stream(
    request: HttpRequest,
    events: AsyncGenerator[Event, None],
    encode: Callable[[AsyncIterator[Event]], AsyncIterator[str]],
) -> StreamingResponse:
    """Respond with server-sent events. The headers tell proxies and browsers not to buffer them.

    The first event is awaited before the response starts, so that a question that fails gets an error status.

    encode: encodes the remaining events
    """
    await while_connected(request, anext(events))

    async def lines() -> AsyncIterator[str]:
        async with aclosing(events):
            async for line in encode(events):
                yield line

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(lines(), media_type="text/event-stream", headers=headers)


async def respond_to_error(_request: HttpRequest, error: Exception) -> Response:
    """Respond to a request that failed."""
    api_error = error if isinstance(error, ApiError) else refusal(error)
    if api_error is error and api_error.status not in (400, 499):
        log_line(f"refused with {api_error.status}: {api_error}")
    return api_error.response()


def build_application(routes: Sequence[Route]) -> Starlette:
    """Build an application that turns errors into responses."""
    return Starlette(routes=routes, exception_handlers=dict.fromkeys(FAILURES, respond_to_error))

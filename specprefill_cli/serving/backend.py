"""Shared by the HTTP endpoints: questions to the engine and their events, limits, errors as responses."""

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


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Options of `serve` that are no settings.

    queue: questions that may wait; body_bytes: of a request; upstream: the server that this one is a proxy of
    """

    http: str | None = None
    token_file: Path | None = None
    allowed_hosts: tuple[str, ...] = ()
    queue: int
    body_bytes: int
    upstream: EndpointRef | None = None


@dataclass(frozen=True, kw_only=True)
class Backend:
    """Answers for the HTTP endpoints.

    documents: the server's own, for questions that bring none
    about: what the server is, for its own user; started: seconds since 1970
    """

    engine: LocalEngine
    documents: Collection | None
    options: ServeOptions
    metrics: Metrics
    about: Mapping[str, Any] = field(default_factory=dict)
    started: float = field(default_factory=time.time)

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

        patient: whether it waits behind however many others

        Raises ApiError where the question fails, and where the queue is full.
        """
        arrived, loop = asyncio.Queue[Event](), asyncio.get_running_loop()

        def deliver(event: Event) -> None:
            loop.call_soon_threadsafe(arrived.put_nowait, event)

        limit = self.options.queue
        try:
            ticket = self.engine.submit(request, deliver, None if patient else limit)
        except QueueFull:
            reason = f"{limit} questions wait already; ask again later"
            raise ApiError(429, reason, "rate_limit_error", RETRY_SECONDS) from None
        event: Event | None = None
        try:
            while not isinstance(event, Done):
                event = await arrived.get()
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
    """The response to a question that failed. An error that users cannot fix is named by its class only."""
    if isinstance(error, SpecprefillError):
        error_type = "prompt_too_long" if isinstance(error, PromptTooLong) else "invalid_request_error"
        return ApiError(400, str(error), error_type, cause=error)
    if isinstance(error, Cancelled | ClientDisconnect):
        return ApiError(499, "the client has gone")
    log_line(f"failed with 500: {type(error).__name__}: {first_line(error)}")
    return ApiError(500, f"the server failed with {type(error).__name__}", "server_error")


async def while_connected(request: HttpRequest, work: Awaitable[Any]) -> Any:
    """The outcome of the work; it is cancelled when the client goes away first."""

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, departure = asyncio.ensure_future(work), asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait({task, departure}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ApiError(499, "the client has gone")
    finally:
        task.cancel()
        departure.cancel()


async def event_stream(
    request: HttpRequest,
    events: AsyncGenerator[Event, None],
    write: Callable[[AsyncIterator[Event]], AsyncIterator[str]],
) -> StreamingResponse:
    """Server-sent events; no proxy or browser may buffer them.

    write: writes the events after the first token. The first token is awaited here, so that a question that fails gets its
        own status
    """
    await while_connected(request, anext(events))

    async def lines() -> AsyncIterator[str]:
        async with aclosing(events):
            async for line in write(events):
                yield line

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(lines(), media_type="text/event-stream", headers=headers)


async def answer_failure(_request: HttpRequest, error: Exception) -> Response:
    """The response to a request that failed."""
    refused = error if isinstance(error, ApiError) else refusal(error)
    if refused is error and refused.status not in (400, 499):
        log_line(f"refused with {refused.status}: {refused}")
    return refused.response()


def starlette(routes: Sequence[Route]) -> Starlette:
    """An application whose errors become responses."""
    return Starlette(routes=routes, exception_handlers=dict.fromkeys(FAILURES, answer_failure))

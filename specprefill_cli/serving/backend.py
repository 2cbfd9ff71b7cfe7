"""What the HTTP endpoints share: questions to the engine and waiting for their events, limits, errors as responses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse

from specprefill_cli.engine.local import LocalEngine
from specprefill_cli.engine.request import (
    LAST,
    Cancelled,
    Done,
    Event,
    Failed,
    Piece,
    Provisional,
    QueueFull,
    Request,
)
from specprefill_cli.errors import PromptTooLong, SpecprefillError, first_line
from specprefill_cli.serving.guard import ApiError, log_line

if TYPE_CHECKING:
    from specprefill_cli.answering.session import Session
    from specprefill_cli.documents.document import Collection
    from specprefill_cli.engine.local import LocalEngine
    from specprefill_cli.serving.control import Identity
    from specprefill_cli.serving.metrics import Metrics

# Seconds after which a client that was turned away may ask again.
RETRY_SECONDS = 5
# Documents that are read at a time, beside the engine's work.
READERS = 2


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


@dataclass(frozen=True, kw_only=True)
class Limits:
    """body_bytes: of a request; queue: questions that may wait; queue_seconds: how long one may."""

    body_bytes: int
    queue: int
    queue_seconds: float


@dataclass(frozen=True, kw_only=True)
class Backend:
    """Answers for the HTTP endpoints.

    own: the server's documents, for questions that bring none; log_requests: whether questions are logged
    identity: what the server has loaded; addresses: where it listens; started: seconds since 1970
    """

    engine: LocalEngine
    session: Session
    own: Collection | None
    limits: Limits
    metrics: Metrics
    identity: Identity
    addresses: tuple[str, ...] = ()
    log_requests: bool = False
    started: float = field(default_factory=time.time)
    reading: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(READERS))

    @property
    def pair_name(self) -> str:
        """The name of the loaded pair."""
        return self.session.pair.pair.name

    def submit(self, request: Request, patient: bool = False) -> Submission:
        """Put a question about documents that were read into the queue. Raises ApiError where it is full.

        patient: whether it waits as long as it takes, behind however many others
        """
        if self.log_requests and not isinstance(request.documents, tuple):
            names = [document.name for document in request.documents.documents]
            log_line(f"question {request.question!r} about {names}")
        try:
            if patient:
                return Submission(self.engine, request)
            return Submission(self.engine, request, self.limits.queue, self.limits.queue_seconds)
        except QueueFull:
            raise ApiError(
                429, f"{self.limits.queue} questions wait already; ask again later", "rate_limit_error", RETRY_SECONDS
            ) from None


async def pieces_of(submission: Submission) -> AsyncIterator[Event]:
    """The payloads of a question. Raises ApiError where it fails."""
    try:
        async for payload in submission:
            if isinstance(payload, Failed):
                raise refusal(payload.error)
            yield payload
    except QueueTimeout:
        raise ApiError(
            503, f"the question waited for {submission.patience:g} s; ask again later", "overloaded", RETRY_SECONDS
        ) from None


def refusal(error: BaseException) -> ApiError:
    """The response to a question that failed; what no user can mend is told by its type alone."""
    if isinstance(error, PromptTooLong):
        return ApiError(400, str(error), "prompt_too_long", cause=error)
    if isinstance(error, SpecprefillError):
        return ApiError(400, str(error), cause=error)
    if isinstance(error, Cancelled):
        return ApiError(499, "the client has gone")
    log_line(f"a question failed with {type(error).__name__}")
    return ApiError(500, f"the server failed with {type(error).__name__}", "server_error")


async def whole_answer(submission: Submission) -> Done:
    """Wait for an answer's end. Raises ApiError."""
    async with submission:
        async for payload in pieces_of(submission):
            if isinstance(payload, Done):
                return payload
    raise ApiError(500, "the answer has no end", "server_error")


async def while_connected(request: HttpRequest, work: Awaitable[Any]) -> Any:
    """The outcome of the work, which is cancelled when the client goes away first."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ApiError(499, "the client has gone")
    finally:
        for pending in (task, gone):
            pending.cancel()


async def disconnected(request: HttpRequest) -> None:
    """Wait until the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def text_pieces(submission: Submission, first: Event) -> AsyncIterator[Piece | Provisional | Done]:
    """The pieces of an answer's text and its ends, from its first payload on; leaving early cancels it."""
    async with submission:
        if isinstance(first, Piece | Provisional | Done):
            yield first
        async for payload in pieces_of(submission):
            if isinstance(payload, Piece | Provisional | Done):
                yield payload


async def first_payload(submission: Submission) -> Event:
    """Wait for the first token, so that a question that fails has a status of its own. Raises ApiError."""
    try:
        async for payload in pieces_of(submission):
            return payload
    except BaseException:
        submission.cancel()
        raise
    raise ApiError(500, "the answer has no end", "server_error")


def event_stream(events: AsyncIterator[str]) -> StreamingResponse:
    """Server-sent events, of which no proxy or browser may keep a part back."""
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


def with_errors(endpoint: Callable[[HttpRequest], Awaitable[Response]]) -> Callable[[HttpRequest], Awaitable[Response]]:
    """An endpoint whose refusals become responses; one bad request harms no other."""

    async def answered(request: HttpRequest) -> Response:
        try:
            return await endpoint(request)
        except ApiError as error:
            if error.status not in (400, 499):
                log_line(f"refused with {error.status}: {error}")
            return error.response()
        except SpecprefillError as error:
            return refusal(error).response()
        except ClientDisconnect:
            return ApiError(499, "the client has gone").response()
        except Exception as error:
            log_line(f"failed with 500: {type(error).__name__}: {first_line(error)}")
            return ApiError(500, f"unexpected {type(error).__name__}", "server_error").response()

    return answered

"""The endpoints `/v1/ask`, `/v1/passages`, `/v1/plan`, `/healthz` and `/metrics`, and what all endpoints share."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from specprefill_cli.batching.rows import unknown_keys
from specprefill_cli.engine.request import (
    ANSWER,
    PASSAGES,
    PLAN,
    Cancelled,
    Done,
    Event,
    Failed,
    Piece,
    QueueFull,
)
from specprefill_cli.engine.request import Request as Question
from specprefill_cli.errors import PromptTooLong, SpecprefillError, first_line
from specprefill_cli.serving.body import KEYS, json_body, parse_question
from specprefill_cli.serving.guard import ApiError, AsciiResponse, log_line

if TYPE_CHECKING:
    from specprefill_cli.answering.session import Session
    from specprefill_cli.documents.document import Collection
    from specprefill_cli.engine.local import LocalEngine
    from specprefill_cli.models.sources.refs import EndpointRef
    from specprefill_cli.serving.metrics import Metrics

# Seconds after which a refused client may ask again.
RETRY_SECONDS = 5
# A stream that waits for its first token sends a comment this often, so that no proxy takes it for dead.
COMMENT_SECONDS, COMMENT = 15.0, ": waiting\n\n"
# The engine counts as stuck after this many seconds with work but without a pass.
STUCK_SECONDS = 300.0
# Most characters of a client's value in an error message.
MAX_SHOWN_CHARACTERS = 100
TASKS = {"/v1/ask": ANSWER, "/v1/passages": PASSAGES, "/v1/plan": PLAN}


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Options of `serve` that are not settings.

    idle_seconds: None for no limit; queue: most questions that wait; upstream: the server that a proxy forwards to
    """

    http: str | None = None
    token_file: Path | None = None
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    idle_seconds: float | None = None
    queue: int
    upstream: EndpointRef | None = None


@dataclass(frozen=True, kw_only=True)
class ServerContext:
    """The engine and everything else that the HTTP endpoints share.

    documents: the server's documents, for questions that bring none
    about: describes the server to its own user; started: seconds since 1970
    is_private: whether only this user asks, on the Unix socket: requests may name files
    """

    engine: LocalEngine
    documents: Collection | None
    options: ServeOptions
    metrics: Metrics
    about: Mapping[str, Any] = field(default_factory=dict)
    started: float = field(default_factory=time.time)
    is_private: bool = False

    @property
    def session(self) -> Session:
        """The loaded pair."""
        return self.engine.session

    @property
    def pair_name(self) -> str:
        """The name of the loaded pair."""
        return self.session.pair.pair.name

    async def events(self, question: Question, ignores_queue_limit: bool = False) -> AsyncGenerator[Event, None]:
        """Ask a question, and yield its events. A caller that stops before the last event cancels the question.

        ignores_queue_limit: whether the limit of the queue does not apply

        Raises ApiError for a failed question and a full queue.
        """
        events: asyncio.Queue[Event] = asyncio.Queue()
        loop, queue = asyncio.get_running_loop(), self.options.queue

        def on_event(event: Event) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        try:
            ticket = self.engine.submit(question, on_event, None if ignores_queue_limit else queue)
        except QueueFull:
            reason = f"{queue} questions are waiting already; ask again later"
            raise ApiError(429, reason, "rate_limit_error", RETRY_SECONDS) from None
        event: Event | None = None
        try:
            while not isinstance(event, Done):
                event = await events.get()
                if isinstance(event, Failed):
                    raise to_api_error(event.error)
                yield event
        finally:
            self.engine.cancel(ticket)

    async def answer(self, request: Request, question: Question, ignores_queue_limit: bool = False) -> Done:
        """Ask a question, and wait for its end, or for the client's. Raises what `events` raises."""

        async def last_event() -> Event:
            return [event async for event in self.events(question, ignores_queue_limit)][-1]

        done = await while_connected(request, last_event())
        assert isinstance(done, Done), "a question that fails raises"
        return done


def build_application(context: ServerContext, routes: Mapping[str, Any]) -> Starlette:
    """Build an application that turns errors into responses.

    routes: endpoints by methods and path; `/healthz` and `/metrics` are added
    """
    endpoints = {"GET /healthz": health, "GET /metrics": metrics, **routes}
    return Starlette(
        routes=[
            Route(name.split()[1], partial(endpoint, context=context), methods=name.split()[0].split(","))
            for name, endpoint in endpoints.items()
        ],
        exception_handlers={
            **dict.fromkeys((ApiError, SpecprefillError, ClientDisconnect, Exception), respond_to_error),
            HTTPException: partial(respond_unknown, endpoints=", ".join(endpoints)),
        },
    )


async def respond_to_error(_request: Request, error: Exception) -> Response:
    """Respond to a request that failed."""
    api_error = to_api_error(error)
    if api_error is error and api_error.status not in (400, 499):
        log_line(f"refused with {api_error.status}: {api_error}")
    return api_error.response()


async def respond_unknown(request: Request, error: HTTPException, endpoints: str) -> Response:
    """Respond to a path or a method that does not exist with those that do."""
    message = f"{request.method} {request.url.path[:MAX_SHOWN_CHARACTERS]}: not here; this server has {endpoints}"
    response = ApiError(error.status_code, message, "not_found_error").response()
    response.headers.update(error.headers or {})
    return response


def to_api_error(error: BaseException) -> ApiError:
    """Turn the error of a question into a response. The client sees only the type of an internal error."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, SpecprefillError):
        error_type = "prompt_too_long" if isinstance(error, PromptTooLong) else "invalid_request_error"
        return ApiError(400, str(error), error_type, cause=error)
    if isinstance(error, Cancelled | ClientDisconnect):
        return ApiError(499, "the client has gone")
    log_line(f"failed with 500: {type(error).__name__}: {first_line(error)}")
    return ApiError(500, f"the server failed with {type(error).__name__}", "server_error")


async def while_connected(request: Request, work: Awaitable[Any]) -> Any:
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
    request: Request,
    events: AsyncGenerator[Event, None],
    encode: Callable[[AsyncIterator[Event]], AsyncIterator[str]],
) -> StreamingResponse:
    """Respond with server-sent events. The headers tell proxies and browsers not to buffer them.

    The response starts with the first event, so that a question that fails at once gets an error status; if that takes long,
    it starts with comments.

    encode: encodes the remaining events, and the ApiError that they may raise
    """
    first = asyncio.ensure_future(anext(events))
    try:
        await while_connected(request, asyncio.wait({first}, timeout=COMMENT_SECONDS))
        if first.done():
            first.result()
    except BaseException:
        first.cancel()
        raise

    async def remaining_events() -> AsyncIterator[Event]:
        await first
        async for event in events:
            yield event

    async def lines() -> AsyncIterator[str]:
        try:
            while not first.done():
                yield COMMENT
                await asyncio.wait({first}, timeout=COMMENT_SECONDS)
            async with aclosing(events):
                async for line in encode(remaining_events()):
                    yield line
        finally:
            first.cancel()

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(lines(), media_type="text/event-stream", headers=headers)


async def health(request: Request, context: ServerContext) -> Response:
    """Say whether the server answers, and describe it to this user."""
    engine = context.engine
    is_stuck = engine.busy and time.monotonic() - engine.last_active > STUCK_SECONDS
    state: dict[str, Any] = {"status": "stuck" if is_stuck else "ok"}
    if context.is_private:
        state |= {
            **context.about,
            "pair": context.pair_name,
            "uptime_seconds": round(time.time() - context.started, 1),
            "waiting": len(engine.waiting),
            "busy": engine.busy,
        }
    return AsciiResponse(state, 503 if is_stuck else 200)


async def metrics(request: Request, context: ServerContext) -> Response:
    """Return the metrics in Prometheus's text format."""
    return Response(context.metrics.text(), media_type="text/plain; version=0.0.4")


async def ask(request: Request, context: ServerContext) -> Response:
    """Answer with passages, a plan, or an answer's record. With `stream`, the pieces of its text come first."""
    body, task = await json_body(request), TASKS[request.url.path]
    question = replace(parse_question(body, context.session.settings, context.is_private), task=task)
    if not body.get("documents"):
        if context.documents is None:
            raise ApiError(400, "documents are missing; send some, or start the server with some")
        question = replace(question, documents=context.documents)
    # Commands of the server's own user wait for the queue: a batch would lose rows otherwise.
    if body.get("stream") is True and task == ANSWER:
        events = context.events(question, ignores_queue_limit=context.is_private)
        return await event_stream(request, events, partial(encode_events, body=body))
    done = await context.answer(request, question, ignores_queue_limit=context.is_private)
    return AsciiResponse(record(done, body) if task == ANSWER else asdict(done.result))


async def encode_events(events: AsyncIterator[Event], body: Mapping[str, Any]) -> AsyncIterator[str]:
    """Encode server-sent events: `piece` for text, `answer` for the record, `error` for a failure. body: of the request."""

    def encode(name: str, data: dict[str, Any]) -> str:
        return f"event: {name}\ndata: {json.dumps(data)}\n\n"

    try:
        async for event in events:
            if isinstance(event, Piece):
                yield encode("piece", {"text": event.text})
            elif isinstance(event, Done):
                yield encode("answer", record(event, body))
    except ApiError as error:
        yield encode("error", error.body)


def record(done: Done, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON of `ask`: the record with the id in the body, and a warning for each unknown key of the body."""
    ignored = [f"key '{key}' of the request is unknown and was ignored" for key in unknown_keys(body, KEYS)]
    warnings = [*done.result.warnings, *ignored]
    identifier = body.get("id")
    answer = replace(done.result, id="" if identifier is None else str(identifier), warnings=warnings).to_json()
    return answer | ({"cells": [asdict(cell) for cell in done.cells]} if done.cells is not None else {})

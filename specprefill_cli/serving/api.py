"""The endpoints `/v1/ask`, `/v1/passages`, `/healthz` and `/metrics`, and what all endpoints share."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from prometheus_client import generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from specprefill_cli.batching.rows import unknown_keys
from specprefill_cli.engine.http import PATHS
from specprefill_cli.engine.request import ANSWER, Done, Event, Piece
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.record import SCHEMA, Record, Retrieval
from specprefill_cli.serving.body import KEYS, json_body, parse_question
from specprefill_cli.serving.context import ServerContext, to_api_error, while_connected
from specprefill_cli.serving.guard import ApiError, AsciiResponse, log_line

# A stream that waits for its first token sends a comment this often, so that no proxy takes it for dead.
COMMENT_SECONDS, COMMENT = 15.0, ": waiting\n\n"
MAX_SHOWN_CHARACTERS = 100
TASKS = {path: task for task, path in PATHS.items()}


def build_application(context: ServerContext, routes: Mapping[str, Any]) -> Starlette:
    """Build an application that turns errors into responses. routes: endpoints by methods and path."""
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
    """Name the endpoints that exist."""
    message = f"{request.method} {request.url.path[:MAX_SHOWN_CHARACTERS]}: not here; this server has {endpoints}"
    response = ApiError(error.status_code, message, "not_found_error").response()
    response.headers.update(error.headers or {})
    return response


async def event_stream(
    request: Request, events: AsyncGenerator[Event, None], encode: Callable[[AsyncIterator[Event]], AsyncIterator[str]]
) -> StreamingResponse:
    """Respond with server-sent events; encode: encodes events, and the ApiError that they may raise.

    The response starts with the first event, so that a question that fails at once gets an error status; if that takes long,
    it starts with comments.
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
    state: dict[str, Any] = {"status": "ok"}
    if context.is_private:
        uptime, waiting = round(time.time() - context.started, 1), len(context.engine.waiting)
        work = {"waiting": waiting, "busy": context.engine.busy}
        state |= {**context.about, "pair": context.pair_name, "uptime_seconds": uptime, **work}
    return AsciiResponse(state)


async def metrics(_request: Request, context: ServerContext) -> Response:
    """Return the metrics in Prometheus's text format."""
    return Response(generate_latest(context.metrics.registry), media_type="text/plain; version=0.0.4")


async def ask(request: Request, context: ServerContext) -> Response:
    """Answer with passages or an answer's record. With `stream`, the pieces of its text come first."""
    body, task = await json_body(request), TASKS[request.url.path]
    question = replace(parse_question(body, context.session.settings, context.is_private), task=task)
    if body.get("documents") is None:
        if context.documents is None:
            raise ApiError(400, "documents are missing; send some, or start the server with some")
        question = replace(question, documents=context.documents)
    if body.get("stream") is True and task == ANSWER:
        return await event_stream(request, context.events(question), partial(encode_events, body=body))
    done = await context.answer(request, question)
    return AsciiResponse(record(done.result, body))


async def encode_events(events: AsyncIterator[Event], body: Mapping[str, Any]) -> AsyncIterator[str]:
    """Encode server-sent events: `piece` for text, `answer` for the record, `error` for a failure. body: of the request."""
    encode = "event: {}\ndata: {}\n\n".format
    try:
        async for event in events:
            if isinstance(event, Piece):
                yield encode("piece", json.dumps({"text": event.text}))
            elif isinstance(event, Done):
                yield encode("answer", json.dumps(record(event.result, body)))
    except ApiError as error:
        yield encode("error", json.dumps(error.body))


def record(answer: Record | Retrieval, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON of `ask`, with the id in the body, or of `passages`, with warnings of unknown keys of the body."""
    ignored = [f"key '{key}' of the request is unknown and was ignored" for key in unknown_keys(body, KEYS)]
    answer = replace(answer, warnings=[*answer.warnings, *ignored])
    if isinstance(answer, Retrieval):
        return {"schema": SCHEMA, **asdict(answer)}
    return replace(answer, id="" if body.get("id") is None else str(body["id"])).to_json()

"""HTTP endpoints: `/v1/ask`, `/v1/passages`, `/v1/plan`, `/healthz` and `/metrics`; `chat` adds those of OpenAI's API."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from specprefill_cli.engine.request import ANSWER, PASSAGES, PLAN, Done, Event, Piece, Provisional
from specprefill_cli.serving.backend import Backend, build_application, event_stream, while_connected
from specprefill_cli.serving.body import AskBody, ask_body, json_body, read_all
from specprefill_cli.serving.chat import complete, list_models, show_model
from specprefill_cli.serving.guard import ApiError, AsciiResponse

# The engine counts as stuck after this many seconds with work but without a pass.
STUCK_SECONDS = 300.0


def application(backend: Backend, paths_allowed: bool) -> ASGIApp:
    """Build the application of one listening socket.

    paths_allowed: whether requests may name files, as on the Unix socket
    """

    def route(path: str, endpoint: Any, method: str = "GET", **arguments: Any) -> Route:
        return Route(path, partial(endpoint, backend=backend, **arguments), methods=[method])

    routes = [
        route("/v1/ask", ask, "POST", paths_allowed=paths_allowed, task=ANSWER),
        route("/v1/passages", ask, "POST", paths_allowed=paths_allowed, task=PASSAGES),
        route("/v1/plan", ask, "POST", paths_allowed=paths_allowed, task=PLAN),
        route("/v1/chat/completions", complete, "POST"),
        route("/v1/models", list_models),
        route("/v1/models/{model}", show_model),
        route("/healthz", health, with_details=paths_allowed),
        route("/metrics", metrics),
    ]
    return build_application(routes)


async def health(request: Request, backend: Backend, with_details: bool) -> Response:
    """Say whether the server answers. with_details: describe it too, as on the socket that needs no token."""
    engine = backend.engine
    stuck = engine.busy and time.monotonic() - engine.last_active > STUCK_SECONDS
    state: dict[str, Any] = {"status": "stuck" if stuck else "ok"}
    if with_details:
        state |= {
            **backend.about,
            "pair": backend.pair_name,
            "uptime_seconds": round(time.time() - backend.started, 1),
            "waiting": len(engine.waiting),
            "busy": engine.busy,
        }
    return AsciiResponse(state, 503 if stuck else 200)


async def metrics(request: Request, backend: Backend) -> Response:
    """Return the metrics in Prometheus's text format."""
    return Response(backend.metrics.text(), media_type="text/plain; version=0.0.4")


async def ask(request: Request, backend: Backend, paths_allowed: bool, task: str) -> Response:
    """Answer with passages, a plan, or an answer's record. With `stream`, the pieces of its text come first."""
    body = ask_body(await json_body(request, backend.options.body_bytes), backend.session.settings)
    collection = backend.documents
    if body.documents:
        collection = await while_connected(request, read_all(body, paths_allowed, backend.readers))
    if collection is None:
        raise ApiError(400, "documents are missing; send some, or start the server with some")
    question = replace(body.question, documents=collection, task=task)
    # Commands of the server's own user wait for the queue: a batch would lose rows otherwise.
    if body.stream and task == ANSWER:
        events = backend.events(question, patient=paths_allowed)
        return await event_stream(request, events, partial(encode_events, body=body))
    done = await while_connected(request, backend.answer(question, patient=paths_allowed))
    return AsciiResponse(record(done, body) if task == ANSWER else asdict(done.result))


async def encode_events(events: AsyncIterator[Event], body: AskBody) -> AsyncIterator[str]:
    """Encode server-sent events: `piece` for text, `answer` for the record, `error` for a failure.

    `provisional` is the record of an answer that still has to be confirmed.
    """

    def encode(name: str, values: dict[str, Any]) -> str:
        return f"event: {name}\ndata: {json.dumps(values)}\n\n"

    try:
        async for event in events:
            if isinstance(event, Piece):
                yield encode("piece", {"text": event.text})
            elif isinstance(event, Provisional):
                yield encode("provisional", record(Done(event.result), body))
            elif isinstance(event, Done):
                yield encode("answer", record(event, body))
    except ApiError as error:
        yield encode("error", error.body)


def record(done: Done, body: AskBody) -> dict[str, Any]:
    """Return the JSON of `ask`: the record with the request's id, and a warning for each unknown key."""
    ignored = [f"key '{key}' of the request is unknown and was ignored" for key in body.ignored]
    answer = replace(done.result, id=body.identifier, warnings=[*done.result.warnings, *ignored]).to_json()
    return answer | ({"cells": [asdict(cell) for cell in done.cells]} if done.cells is not None else {})

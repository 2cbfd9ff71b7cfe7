"""The HTTP endpoints: `/v1/ask`, `/v1/passages`, `/v1/plan`, `/healthz` and `/metrics`; `chat` adds those of OpenAI's API."""

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
from specprefill_cli.serving.backend import Backend, event_stream, starlette, while_connected
from specprefill_cli.serving.body import AskBody, ask_body, json_body, read_all
from specprefill_cli.serving.chat import complete, list_models, show_model
from specprefill_cli.serving.guard import ApiError, AsciiResponse

# Seconds without a pass while there is work, after which the engine counts as stuck.
STUCK_SECONDS = 300.0


def application(backend: Backend, paths_allowed: bool) -> ASGIApp:
    """The application for one listening socket. paths_allowed: whether requests may name files, as on the Unix socket."""

    def route(path: str, endpoint: Any, method: str = "GET", **options: Any) -> Route:
        return Route(path, partial(endpoint, backend=backend, **options), methods=[method])

    routes = [
        route("/v1/ask", ask, "POST", paths_allowed=paths_allowed, task=ANSWER),
        route("/v1/passages", ask, "POST", paths_allowed=paths_allowed, task=PASSAGES),
        route("/v1/plan", ask, "POST", paths_allowed=paths_allowed, task=PLAN),
        route("/v1/chat/completions", complete, "POST"),
        route("/v1/models", list_models),
        route("/v1/models/{model}", show_model),
        route("/healthz", health, detailed=paths_allowed),
        route("/metrics", metrics),
    ]
    return starlette(routes)


async def health(request: Request, backend: Backend, detailed: bool) -> Response:
    """Whether the server answers. detailed: also what it is; on the socket that needs no token."""
    engine = backend.engine
    stuck = engine.busy and time.monotonic() - engine.last_active > STUCK_SECONDS
    state: dict[str, Any] = {"status": "stuck" if stuck else "ok"}
    if detailed:
        state |= {
            **backend.about,
            "pair": backend.pair_name,
            "uptime_seconds": round(time.time() - backend.started, 1),
            "waiting": len(engine.waiting),
            "busy": engine.busy,
        }
    return AsciiResponse(state, 503 if stuck else 200)


async def metrics(request: Request, backend: Backend) -> Response:
    """Figures for Prometheus."""
    return Response(backend.metrics.text(), media_type="text/plain; version=0.0.4")


async def ask(request: Request, backend: Backend, paths_allowed: bool, task: str) -> Response:
    """The result of a task: passages, a plan, or an answer's record, with `stream` after the pieces of its text."""
    body = ask_body(await json_body(request, backend.options.body_bytes), backend.session.settings)
    collection = backend.documents
    if body.documents:
        collection = await while_connected(request, read_all(body, paths_allowed))
    if collection is None:
        raise ApiError(400, "documents are missing; send some, or start the server with some")
    question = replace(body.question, documents=collection, task=task)
    # The command of the server's own user waits: a batch would lose rows otherwise.
    if body.stream and task == ANSWER:
        events = backend.events(question, patient=paths_allowed)
        return await event_stream(request, events, partial(server_sent, body=body))
    done = await while_connected(request, backend.answer(question, patient=paths_allowed))
    return AsciiResponse(record(done, body) if task == ANSWER else asdict(done.result))


async def server_sent(events: AsyncIterator[Event], body: AskBody) -> AsyncIterator[str]:
    """Server-sent events: `piece` for text, `answer` for the record, `error` where it ends early.

    Before an answer that is to be confirmed comes `provisional`, its record until then.
    """

    def write(name: str, values: dict[str, Any]) -> str:
        return f"event: {name}\ndata: {json.dumps(values)}\n\n"

    try:
        async for event in events:
            if isinstance(event, Piece):
                yield write("piece", {"text": event.text})
            elif isinstance(event, Provisional):
                yield write("provisional", record(Done(event.result), body))
            elif isinstance(event, Done):
                yield write("answer", record(event, body))
    except ApiError as error:
        yield write("error", error.body)


def record(done: Done, body: AskBody) -> dict[str, Any]:
    """The JSON of `ask`, with the id of the request, and a warning for each unknown key."""
    ignored = [f"key '{key}' of the request is unknown and was ignored" for key in body.ignored]
    answer = replace(done.result, id=body.identifier, warnings=[*done.result.warnings, *ignored]).to_json()
    return answer | ({"cells": [asdict(cell) for cell in done.cells]} if done.cells is not None else {})

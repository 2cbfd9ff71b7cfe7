"""The HTTP endpoints: `/v1/ask`, `/v1/passages`, `/v1/plan`, `/healthz` and `/metrics`; `chat` adds those of OpenAI's API."""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from specprefill_cli import __version__
from specprefill_cli.documents.document import Collection
from specprefill_cli.engine.request import PASSAGES, PLAN, Done, Event, Piece, Provisional
from specprefill_cli.engine.request import Request as Question
from specprefill_cli.serving.backend import (
    Backend,
    Submission,
    event_stream,
    first_payload,
    text_pieces,
    while_connected,
    whole_answer,
    with_errors,
)
from specprefill_cli.serving.body import AskBody, ask_body, json_body, read_all
from specprefill_cli.serving.control import Identity
from specprefill_cli.serving.guard import ApiError, AsciiResponse

# Seconds without a pass while there is work, after which the engine counts as stuck.
STUCK_SECONDS = 300.0


def application(backend: Backend, paths_allowed: bool) -> ASGIApp:
    """The application for one listening socket. paths_allowed: whether requests may name files, as on the Unix socket."""
    from specprefill_cli.serving.chat import complete, list_models, show_model

    def own(endpoint: Any) -> Any:
        return with_errors(partial(endpoint, backend=backend, paths_allowed=paths_allowed))

    routes = [
        Route("/v1/ask", own(ask), methods=["POST"]),
        Route("/v1/passages", own(partial(without_answer, task=PASSAGES)), methods=["POST"]),
        Route("/v1/plan", own(partial(without_answer, task=PLAN)), methods=["POST"]),
        Route("/v1/chat/completions", with_errors(partial(complete, backend=backend)), methods=["POST"]),
        Route("/v1/models", with_errors(partial(list_models, backend=backend))),
        Route("/v1/models/{model}", with_errors(partial(show_model, backend=backend))),
        Route("/healthz", with_errors(partial(health, backend=backend, told=paths_allowed))),
        Route("/metrics", with_errors(partial(metrics, backend=backend))),
    ]
    return Starlette(routes=routes)


def health_application(identity: Identity, addresses: tuple[str, ...], told: bool) -> ASGIApp:
    """What answers /healthz while the models load; told: as in `health`."""

    async def loading(_request: Request) -> Response:
        state: dict[str, Any] = {"status": "loading"}
        return AsciiResponse(state | (description(identity, addresses) if told else {}), 503)

    return Starlette(routes=[Route("/healthz", loading)])


def description(identity: Identity, addresses: tuple[str, ...]) -> dict[str, Any]:
    """What a server is, for its own user."""
    return {
        "version": __version__,
        "process": os.getpid(),
        "addresses": list(addresses),
        "identity": identity.to_json(),
    }


async def health(request: Request, backend: Backend, told: bool) -> Response:
    """Whether the server answers. told: also what it is, which needs no token only on the socket."""
    engine = backend.engine
    stuck = engine.busy and time.monotonic() - engine.last_active > STUCK_SECONDS
    state: dict[str, Any] = {"status": "stuck" if stuck else "ok"}
    if told:
        state |= description(backend.identity, backend.addresses) | {
            "pair": backend.pair_name,
            "uptime_seconds": round(time.time() - backend.started, 1),
            "waiting": engine.queued,
            "busy": engine.busy,
        }
    return AsciiResponse(state, 503 if stuck else 200)


async def metrics(request: Request, backend: Backend) -> Response:
    """Figures for Prometheus."""
    return Response(backend.metrics.text(), media_type="text/plain; version=0.0.4")


async def asked(request: Request, backend: Backend, paths_allowed: bool) -> tuple[AskBody, Collection]:
    """The question in a request, and its documents. Raises ApiError, UsageError or DocumentError."""
    body = ask_body(await json_body(request, backend.limits.body_bytes), backend.session.settings)
    if body.documents:
        return body, await while_connected(request, read_all(body, paths_allowed, backend.reading))
    if backend.own is None:
        raise ApiError(400, "documents are missing; send some, or start the server with some")
    return body, backend.own


async def ask(request: Request, backend: Backend, paths_allowed: bool) -> Response:
    """Answer one question: its record, or with `stream` pieces of text and then the record."""
    body, collection = await asked(request, backend, paths_allowed)
    # The server's own user has a command that waits, which would lose the rows of a batch otherwise.
    question = Question(
        documents=collection,
        question=body.question,
        settings=body.settings,
        identifier=body.identifier,
        with_cells=body.with_cells,
    )
    submission = backend.submit(question, patient=paths_allowed)
    if not body.stream:
        finished = await while_connected(request, whole_answer(submission))
        return AsciiResponse(record(finished, body))
    first = await while_connected(request, first_payload(submission))
    return event_stream(events(submission, first, body))


async def without_answer(request: Request, backend: Backend, paths_allowed: bool, task: str) -> Response:
    """The passages or the plan of a question, as JSON."""
    body, collection = await asked(request, backend, paths_allowed)
    question = Question(documents=collection, question=body.question, settings=body.settings, task=task, top=body.top)
    submission = backend.submit(question, patient=paths_allowed)
    finished = await while_connected(request, whole_answer(submission))
    return AsciiResponse(asdict(finished.result))


async def events(submission: Submission, first: Event, body: AskBody) -> AsyncIterator[str]:
    """Server-sent events: `piece` for text, `answer` for the record, `error` where it ends early.

    Before an answer that is to be confirmed comes `provisional`, its record until then.
    """
    try:
        async for payload in text_pieces(submission, first):
            if isinstance(payload, Piece):
                yield event("piece", {"text": payload.text})
            elif isinstance(payload, Provisional):
                yield event("provisional", record(Done(payload.result), body))
            else:
                yield event("answer", record(payload, body))
    except ApiError as error:
        yield event("error", error.body)


def event(name: str, values: dict[str, Any]) -> str:
    """One server-sent event."""
    return f"event: {name}\ndata: {json.dumps(values)}\n\n"


def record(finished: Done, body: AskBody) -> dict[str, Any]:
    """The JSON of `ask`, with a warning for each key that was not known."""
    ignored = [f"key '{key}' of the request is unknown and was ignored" for key in body.ignored]
    answer = replace(finished.result, warnings=[*finished.result.warnings, *ignored]).to_json()
    return answer | ({"cells": [asdict(cell) for cell in finished.cells]} if finished.cells is not None else {})

"""The HTTP endpoints: `/v1/ask`, `/healthz` and `/metrics`; `chat` adds those of OpenAI's API."""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from specprefill_cli import __version__
from specprefill_cli.reporting.jsonl import answer_record
from specprefill_cli.serving.backend import (
    Backend,
    event_stream,
    first_payload,
    text_pieces,
    while_connected,
    whole_answer,
    with_errors,
)
from specprefill_cli.serving.body import AskBody, ask_body, json_body, read_all
from specprefill_cli.serving.guard import ApiError, AsciiResponse, Guard
from specprefill_cli.serving.messages import Finished, Payload, Piece
from specprefill_cli.serving.submission import Submission


def application(backend: Backend, token: str | None) -> Guard:
    """The application for one listening socket. token: None on the Unix socket, whose user may also name files."""
    from specprefill_cli.serving.chat import complete, list_models

    routes = [
        Route("/v1/ask", with_errors(partial(ask, backend=backend, paths_allowed=token is None)), methods=["POST"]),
        Route("/v1/chat/completions", with_errors(partial(complete, backend=backend)), methods=["POST"]),
        Route("/v1/models", with_errors(partial(list_models, backend=backend))),
        Route("/healthz", with_errors(partial(health, backend=backend, told=token is None))),
        Route("/metrics", with_errors(partial(metrics, backend=backend))),
    ]
    return Guard(Starlette(routes=routes), token, backend.metrics.count)


async def health(request: Request, backend: Backend, told: bool) -> Response:
    """Whether the server answers. told: also what it is, which needs no token only on the socket."""
    state: dict[str, Any] = {"status": "ok"}
    if told:
        state |= {
            "version": __version__,
            "process": os.getppid() if backend.hosted else os.getpid(),
            "pair": backend.pair_name,
            "addresses": list(backend.addresses),
            "uptime_seconds": round(time.time() - backend.started, 1),
            "waiting": backend.engine.queued,
            "busy": backend.engine.busy,
        }
    return AsciiResponse(state)


async def metrics(request: Request, backend: Backend) -> Response:
    """Figures for Prometheus."""
    return Response(backend.metrics.text(), media_type="text/plain; version=0.0.4")


async def ask(request: Request, backend: Backend, paths_allowed: bool) -> Response:
    """Answer one question: its record, or with `stream` pieces of text and then the record."""
    body = ask_body(await json_body(request, backend.limits.body_bytes), backend.session.settings)
    if not body.documents and backend.own is None:
        raise ApiError(400, "documents are missing; send some, or start the server with some")
    collection = await read_all(body.documents, paths_allowed, backend.reading) if body.documents else backend.own
    assert collection is not None
    submission = backend.submit(collection, body.question, body.settings, body.identifier)
    if not body.stream:
        finished = await while_connected(request, whole_answer(submission))
        return AsciiResponse(record(finished, body))
    first = await while_connected(request, first_payload(submission))
    return event_stream(events(submission, first, body))


async def events(submission: Submission, first: Payload, body: AskBody) -> AsyncIterator[str]:
    """Server-sent events: `piece` for text, `answer` for the record, `error` where it ends early."""
    try:
        async for payload in text_pieces(submission, first):
            if isinstance(payload, Piece):
                yield event("piece", {"text": payload.text})
            else:
                yield event("answer", record(payload, body))
    except ApiError as error:
        yield event("error", error.body)


def event(name: str, values: dict[str, Any]) -> str:
    """One server-sent event."""
    return f"event: {name}\ndata: {json.dumps(values)}\n\n"


def record(finished: Finished, body: AskBody) -> dict[str, Any]:
    """The JSON of `ask`, with a warning for each key that was not known."""
    ignored = [f"key '{key}' of the request is unknown and was ignored" for key in body.ignored]
    return answer_record(replace(finished.answer, warnings=[*finished.answer.warnings, *ignored]))

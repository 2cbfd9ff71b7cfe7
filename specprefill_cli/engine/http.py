"""An engine in another process: this user's server, asked over its Unix socket. Imports no torch."""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specprefill_cli.documents.collect import STANDARD_INPUT
from specprefill_cli.engine.request import ANSWER, PASSAGES, PLAN, Done, Event, Piece, Provisional, Request, Started
from specprefill_cli.errors import PromptTooLong, SpecprefillError
from specprefill_cli.record import Cell, DryRun, Record, Retrieval, decoded
from specprefill_cli.settings import AUTO, SETTINGS, Settings

# Seconds to connect, and to answer at least with headers; an answer may take any time.
CONNECTING = 5.0
PATHS = {ANSWER: "/v1/ask", PASSAGES: "/v1/passages", PLAN: "/v1/plan"}


class ServerEnded(SpecprefillError):
    """The server has closed the connection before its answer was complete."""

    def __init__(self) -> None:
        super().__init__("the server has ended; run the command again, with --no-server to do without it")


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path, timeout: float = CONNECTING) -> None:
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(os.fspath(self.path))


@dataclass(frozen=True, kw_only=True)
class HttpEngine:
    """Posts requests to a server.

    path: of the server's socket; startup_seconds: of this process, which its records then have
    """

    path: Path
    startup_seconds: float = 0.0

    def ask(self, request: Request) -> Iterator[Event]:
        """The events of a request; closing the iterator, as Ctrl-C does, ends it on the server too.

        Raises SpecprefillError where the server refuses it, or ends.
        """
        if request.task != ANSWER:
            kind: Any = Retrieval if request.task == PASSAGES else DryRun
            with self.posted(request) as response:
                yield Done(decoded(kind, json.loads(response.read())))
            return
        with self.posted(request, stream=True) as response:
            yield Started()
            for name, values in server_sent(response):
                if name == "piece":
                    yield Piece(values["text"])
                elif name == "error":
                    raise refusal(values)
                elif name == "provisional":
                    yield Provisional(self.done(values).result)
                else:
                    yield self.done(values)
                    return
            raise ServerEnded

    def record(self, request: Request, connected: Callable[[UnixConnection], None]) -> dict[str, Any]:
        """The JSON of an answer, without its pieces. connected: told of the connection, whose end cancels the request."""
        with self.posted(request, connected) as response:
            return json.loads(response.read())

    @contextmanager
    def posted(
        self, request: Request, connected: Callable[[UnixConnection], None] = lambda _: None, stream: bool = False
    ) -> Iterator[http.client.HTTPResponse]:
        """Post a request, and let the block read the response. Raises as `ask`."""
        connection = UnixConnection(self.path)
        try:
            connection.connect()
            connected(connection)
            body = json.dumps({**body_of(request), "stream": stream}).encode("ascii")
            connection.request("POST", PATHS[request.task], body, {"Content-Type": "application/json"})
            assert connection.sock is not None
            connection.sock.settimeout(None)
            response = connection.getresponse()
            if response.status != http.HTTPStatus.OK:
                raise refusal(json.loads(response.read()))
            yield response
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ServerEnded from error
        finally:
            connection.close()

    def done(self, values: dict[str, Any]) -> Done:
        """The end of an answer."""
        cells = values.pop("cells", None)
        record = Record.from_json({**values, "startup_seconds": self.startup_seconds})
        return Done(record, None if cells is None else [decoded(Cell, cell) for cell in cells])


def body_of(request: Request) -> dict[str, Any]:
    """A request as the server's JSON; standard input is read here."""
    assert isinstance(request.documents, tuple), "a server reads the documents itself"
    return {
        "question": request.question,
        "documents": [document_of(name) for name in request.documents],
        "folder": os.getcwd(),
        "id": request.identifier,
        "top": request.top,
        "with_cells": request.with_cells,
        **values_of(request.settings),
    }


def document_of(name: str) -> dict[str, str]:
    """A document as the server takes it: its path, or what standard input holds."""
    if name != STANDARD_INPUT:
        return {"path": os.path.expanduser(name)}
    from specprefill_cli.documents.collect import read_standard_input

    return {"base64": base64.b64encode(read_standard_input(sys.stdin.buffer)).decode("ascii"), "name": "stdin"}


def values_of(settings: Settings) -> dict[str, Any]:
    """All settings of a question, so that the server's own decide nothing."""
    values = {name: getattr(settings, name) for name, setting in SETTINGS.items() if setting.per_question}
    return {name: AUTO if value is None else value for name, value in values.items()}


def server_sent(response: http.client.HTTPResponse) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and values of each server-sent event; comments are skipped."""
    name = ""
    for line in response:
        field, _, value = line.decode("ascii").strip().partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, json.loads(value)


def refusal(body: dict[str, Any]) -> SpecprefillError:
    """The error in a server's response."""
    error = body["error"]
    kind = PromptTooLong if error["type"] == "prompt_too_long" else SpecprefillError
    refused = kind(error["message"])
    refused.exit_code = error.get("exit_code", refused.exit_code)
    # What a row's record names.
    refused.name = error.get("name", refused.name)
    return refused

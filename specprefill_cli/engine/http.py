"""An engine in another process: this user's server, over its Unix socket. Does not import torch."""

import base64
import http.client
import json
import os
import socket
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dacite

from specprefill_cli.engine.request import ANSWER, PASSAGES, Done, Event, Piece, RemoteEngine, Request, Started
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.files import STANDARD_INPUT, only_read_here
from specprefill_cli.record import Fate, Record, Retrieval
from specprefill_cli.settings import AUTO, SETTINGS

# Seconds to connect and send the request; an answer may take any time.
CONNECTING = 5.0
PATHS = {ANSWER: "/v1/ask", PASSAGES: "/v1/passages"}
# Rows of a batch sent to a server at a time: the server itself decides how many run at once.
CAPACITY = 32
JSON = dacite.Config(cast=[Fate], check_types=False)


class ServerEnded(SpecprefillError):
    """The server closed the connection before its answer was complete."""

    def __init__(self) -> None:
        super().__init__("the server has ended; run the command again, with --no-server to do without it")


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket. Raises OSError where nobody listens there."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(CONNECTING)
        self.sock.connect(os.fspath(path))


@dataclass(frozen=True, kw_only=True)
class HttpEngine(RemoteEngine):
    """Posts requests to the server at a socket's `path`."""

    path: Path
    capacity: int = CAPACITY

    def ask(self, request: Request) -> Generator[Event, None, None]:
        """Yield the events of a request; closing the iterator (Ctrl-C does) ends it on the server. Raises SpecprefillError."""
        try:
            # Before connecting: the server drops connections that send nothing for a while, and a pipe may be slow.
            body = json.dumps(body_of(request)).encode("ascii")
            with closing(UnixConnection(self.path)) as connection:
                connection.sock.settimeout(None)
                connection.request("POST", PATHS[request.task], body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                if response.status != http.HTTPStatus.OK:
                    raise error_from_response(json.loads(response.read()))
                if request.task == PASSAGES:
                    yield Done(dacite.from_dict(Retrieval, json.loads(response.read()), JSON))
                    return
                yield Started()
                for name, values in server_sent(response):
                    if name == "piece":
                        yield Piece(values["text"])
                    elif name == "error":
                        raise error_from_response(values)
                    elif name == "answer":
                        record = {**values, **values["pair"], "id": values["id"] or ""}
                        yield Done(dacite.from_dict(Record, record, JSON))
                        return
                raise ServerEnded
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ServerEnded from error


def body_of(request: Request) -> dict[str, Any]:
    """A request as JSON for the server, with all per-question settings, so that none of the server's own applies."""
    assert isinstance(request.documents, tuple), "a server reads the documents itself"
    overrides = {name: getattr(request.settings, name) for name, setting in SETTINGS.items() if setting.per_question}
    return {
        "question": request.question,
        "documents": [document_of(name) for name in dict.fromkeys(request.documents)],
        "folder": os.getcwd(),
        "stream": request.task == ANSWER,
        "top": request.top,
        **{name: AUTO if value is None else value for name, value in overrides.items()},
    }


def document_of(name: str) -> dict[str, str]:
    """A document in the server's format: its path, or the content of what only this process can read."""
    if not only_read_here(name):
        return {"path": os.path.expanduser(name)}
    from specprefill_cli.documents.collect import content_of

    name, path = ("stdin", None) if name == STANDARD_INPUT else (name, Path(name))
    return {"base64": base64.b64encode(content_of(path)).decode("ascii"), "name": name}


def server_sent(response: http.client.HTTPResponse) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and JSON data of each server-sent event; skip comments."""
    event_name = ""
    for line in response:
        field, _, value = line.decode("ascii").strip().partition(": ")
        if field == "event":
            event_name = value
        elif field == "data":
            yield event_name, json.loads(value)


def error_from_response(body: dict[str, Any]) -> SpecprefillError:
    """Build the error that a server's response describes."""
    error = body["error"]
    refused = SpecprefillError(error["message"])
    refused.exit_code = error.get("exit_code", refused.exit_code)
    # A row's record shows this name of the error.
    refused.name = error.get("name", refused.name)
    return refused

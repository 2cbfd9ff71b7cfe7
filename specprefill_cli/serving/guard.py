"""What stands before the application: who may ask, how much they may send, and how slowly."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from specprefill_cli.serving.host import DRAIN_SECONDS, peer_user

# Seconds for a request's headers, and for its body; seconds that a connection may rest between requests.
HEADER_SECONDS, BODY_SECONDS, REST_SECONDS = 10.0, 60.0, 30
# Bytes of a request's headers; connections at a time.
MOST_HEADER_BYTES, MOST_CONNECTIONS = 32 * 1024, 512
OPEN_PATH = "/healthz"


class ApiError(Exception):
    """A request that is refused: status, message, and the kind that clients tell errors apart by."""

    def __init__(
        self, status: int, message: str, kind: str = "invalid_request_error", retry: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.headers = {"Retry-After": str(retry)} if retry is not None else {}

    @property
    def body(self) -> dict[str, Any]:
        """The error as OpenAI's API writes it."""
        return {"error": {"message": str(self), "type": self.kind, "param": None, "code": None}}

    def response(self) -> JSONResponse:
        """The error as a response."""
        return AsciiResponse(self.body, self.status, self.headers)


class AsciiResponse(JSONResponse):
    """JSON in ASCII, as the records on standard output: names of files may hold what UTF-8 cannot encode."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False).encode("ascii")


class GuardedProtocol(H11Protocol):
    """HTTP connections that are this user's own, on a Unix socket, and whose headers arrive in time.

    uvicorn itself bounds the size of headers and the rest between two requests, but not the time that headers take.
    """

    deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if len(self.connections) > MOST_CONNECTIONS:
            log_line(f"refused a connection: more than {MOST_CONNECTIONS} at a time")
            transport.abort()
        elif not same_user(connection):
            log_line("refused a connection of another user")
            transport.abort()
        else:
            self.watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self.watch()
        else:
            self.unwatch()

    def connection_lost(self, exc: Exception | None) -> None:
        self.unwatch()
        super().connection_lost(exc)

    def watch(self) -> None:
        """Headers have begun, or are about to: they must arrive in time."""
        if self.deadline is None:
            self.deadline = self.loop.call_later(HEADER_SECONDS, self.too_slow)

    def unwatch(self) -> None:
        """The headers are there."""
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None

    def too_slow(self) -> None:
        """Close a connection whose headers do not arrive."""
        self.deadline = None
        if not self.transport.is_closing():
            log_line(f"closed a connection: no complete headers within {HEADER_SECONDS:g} s")
            self.transport.close()


class SilentServer(uvicorn.Server):
    """A server that leaves signals to whoever started it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def http_server(application: ASGIApp) -> SilentServer:
    """A server of an application, to be given its listening socket."""
    return SilentServer(
        uvicorn.Config(
            application,
            http=GuardedProtocol,
            ws="none",
            lifespan="off",
            log_level="critical",
            access_log=False,
            server_header=False,
            timeout_keep_alive=REST_SECONDS,
            timeout_graceful_shutdown=DRAIN_SECONDS,
            h11_max_incomplete_event_size=MOST_HEADER_BYTES,
        )
    )


def same_user(connection: socket.socket) -> bool:
    """Whether the peer is this user, where that can be known: on Unix sockets on Linux."""
    if sys.platform != "linux" or connection.family != socket.AF_UNIX:
        return True
    return peer_user(connection) == os.getuid()


def log_line(text: str) -> None:
    """One line on standard error."""
    with contextlib.suppress(OSError):
        print(f"specprefill serve: {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Guard:
    """Refuses requests without the token, and those that a page of another origin has made.

    token: None on the Unix socket, which only this user can open
    count: told of each response's path and status
    """

    application: ASGIApp
    token: str | None
    count: Callable[[str, int], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.count(scope["path"], message["status"])
            await send(message)

        refusal = self.refusal(scope)
        if refusal is None:
            await self.application(scope, receive, counted)
            return
        log_line(f"refused with {refusal.status}: {refusal}")
        await refusal.response()(scope, receive, counted)

    def refusal(self, scope: Scope) -> ApiError | None:
        """Why a request is refused, or None."""
        if self.token is None:
            return None
        headers = dict(scope["headers"])
        if not is_own_host(headers.get(b"host", b"").decode("latin-1")):
            return ApiError(403, "the Host header names another site; use the address that the server printed")
        if scope["path"] == OPEN_PATH:
            return None
        kind, _, given = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        if kind.lower() != "bearer" or not given:
            return ApiError(401, "no token; send the header `Authorization: Bearer TOKEN`", "authentication_error")
        if not hmac.compare_digest(given.strip().encode("latin-1"), self.token.encode("latin-1")):
            return ApiError(401, "wrong token", "authentication_error")
        return None


def is_own_host(host: str) -> bool:
    """Whether a Host header is an address, `localhost`, or this machine's name: no name that a foreign page may use.

    A page reaches this server through a name of its own that it lets point here (DNS rebinding).
    """
    name = host.rpartition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    if name.lower() in ("localhost", socket.gethostname().lower()):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True

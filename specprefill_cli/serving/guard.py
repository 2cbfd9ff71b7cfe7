"""What stands before the application: who may ask, how much they may send, and how slowly."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import os
import queue
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from specprefill_cli.errors import SpecprefillError, first_line

# Seconds for a request's headers, and for its body; seconds that a connection may rest between requests.
HEADER_SECONDS, BODY_SECONDS, REST_SECONDS = 10.0, 60.0, 30
# Seconds after which a client that reads nothing is given up, and a server that was told to stop ends.
WRITE_SECONDS, DRAIN_SECONDS = 30.0, 30
# Seconds between two lines about connections that cannot be taken; log lines that may wait for their reader.
QUIET_SECONDS, MOST_LOG_LINES = 60.0, 1_000
# Connections taken in one go.
BACKLOG = 64
# Bytes of a request's headers; connections at a time.
MOST_HEADER_BYTES, MOST_CONNECTIONS = 32 * 1024, 512
OPEN_PATH = "/healthz"
# Seconds after which a client may ask again while the models load.
LOADING_SECONDS = 2
# What a client must do in time, in words.
HEADERS, READING = "no complete headers", "nothing read"


class ApiError(Exception):
    """A request that is refused: status, message, and the kind that clients tell errors apart by."""

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = "invalid_request_error",
        retry: int | None = None,
        cause: SpecprefillError | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.cause = cause
        self.headers = {"Retry-After": str(retry)} if retry is not None else {}

    @property
    def body(self) -> dict[str, Any]:
        """The error as OpenAI's API writes it."""
        error: dict[str, Any] = {"message": str(self), "type": self.kind, "param": None, "code": None}
        if self.cause is not None:
            # This user's own commands end as they would without a server.
            error |= {"name": type(self.cause).__name__, "exit_code": self.cause.exit_code}
        return {"error": error}

    def response(self) -> JSONResponse:
        """The error as a response."""
        return AsciiResponse(self.body, self.status, self.headers)


class AsciiResponse(JSONResponse):
    """JSON in ASCII, as the records on standard output: names of files may hold what UTF-8 cannot encode."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False).encode("ascii")


class GuardedProtocol(H11Protocol):
    """HTTP connections that are this user's own, on a Unix socket, and whose clients send headers and read answers in time.

    uvicorn itself bounds the size of headers and the rest between two requests, but not the time that headers take.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.timers: dict[str, asyncio.TimerHandle] = {}
        if len(self.connections) > MOST_CONNECTIONS:
            self.abort(f"refused a connection: more than {MOST_CONNECTIONS} at a time")
        elif not same_user(transport.get_extra_info("socket")):
            self.abort("refused a connection of another user")
        else:
            self.expect(HEADERS, HEADER_SECONDS)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self.expect(HEADERS, HEADER_SECONDS)
        else:
            self.forget(HEADERS)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.expect(READING, WRITE_SECONDS)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.forget(READING)

    def connection_lost(self, exc: Exception | None) -> None:
        self.forget(HEADERS)
        self.forget(READING)
        super().connection_lost(exc)

    def expect(self, event: str, seconds: float) -> None:
        """Close the connection unless the event comes in time."""
        if event not in self.timers:
            reason = f"closed a connection: {event} within {seconds:g} s"
            self.timers[event] = self.loop.call_later(seconds, self.abort, reason)

    def forget(self, event: str) -> None:
        """The event has come, or need not come."""
        if timer := self.timers.pop(event, None):
            timer.cancel()

    def abort(self, reason: str) -> None:
        """Close the connection."""
        if not self.transport.is_closing():
            log_line(reason)
            self.transport.abort()


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
            backlog=BACKLOG,
        )
    )


def same_user(connection: socket.socket) -> bool:
    """Whether the peer is this user, where that can be known: on Unix sockets on Linux."""
    if sys.platform != "linux" or connection.family != socket.AF_UNIX:
        return True
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return bool(user == os.getuid())


class Log:
    """Lines on standard error, written by a thread of their own: a full pipe must not stop the event loop."""

    def __init__(self) -> None:
        self.lines: queue.Queue[str] = queue.Queue(MOST_LOG_LINES)
        self.thread: threading.Thread | None = None

    def __call__(self, text: str) -> None:
        """Write a line some time; nothing while too many wait."""
        if self.thread is None:
            self.thread = threading.Thread(target=self.write, name="log", daemon=True)
            self.thread.start()
        with contextlib.suppress(queue.Full):
            self.lines.put_nowait(text)

    def write(self) -> NoReturn:
        """Write the lines that come."""
        while True:
            text = self.lines.get()
            with contextlib.suppress(OSError, ValueError):
                print(f"specprefill serve: {text}", file=sys.stderr, flush=True)
            self.lines.task_done()


log_line = Log()
_last_loop_error = -QUIET_SECONDS


def report_loop_error(loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
    """Log an error of the event loop, such as too many open files, once a minute: it may come thousands of times."""
    global _last_loop_error
    if loop.time() - _last_loop_error >= QUIET_SECONDS:
        _last_loop_error = loop.time()
        error = context.get("exception")
        log_line(f"{context.get('message')}: {type(error).__name__}: {first_line(error)}" if error else str(context))


@dataclass
class Guard:
    """Refuses requests without the token, those that a page of another origin has made, and all while the models load.

    token: None on the Unix socket: only this user can open it
    count: told of each response's path and status; allowed_hosts: names by which proxies and containers call the server
    state: what /healthz tells while the models load; application: None until they are loaded
    """

    token: str | None
    count: Callable[[str, int], None]
    allowed_hosts: Sequence[str] = ()
    state: Mapping[str, Any] = field(default_factory=dict)
    application: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.count(scope["path"], message["status"])
            await send(message)

        refusal = self.refusal(scope)
        if refusal is not None:
            log_line(f"refused with {refusal.status}: {refusal}")
            await refusal.response()(scope, receive, counted)
        elif self.application is not None:
            await self.application(scope, receive, counted)
        elif scope["path"] == OPEN_PATH:
            await AsciiResponse({"status": "loading", **self.state}, 503)(scope, receive, counted)
        else:
            loading = ApiError(503, "the models are loading; ask again soon", "overloaded", LOADING_SECONDS)
            await loading.response()(scope, receive, counted)

    def refusal(self, scope: Scope) -> ApiError | None:
        """Why a request is refused, or None."""
        if self.token is None:
            return None
        headers = dict(scope["headers"])
        if not is_own_host(headers.get(b"host", b"").decode("latin-1"), self.allowed_hosts):
            return ApiError(
                403, "the Host header names another site; use the address that the server printed, or --allow-host"
            )
        if scope["path"] == OPEN_PATH:
            return None
        kind, _, given = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        if kind.lower() != "bearer" or not given:
            return ApiError(401, "no token; send the header `Authorization: Bearer TOKEN`", "authentication_error")
        if not hmac.compare_digest(given.strip().encode("latin-1"), self.token.encode("latin-1")):
            return ApiError(401, "wrong token", "authentication_error")
        return None


def is_own_host(host: str, allowed: Sequence[str] = ()) -> bool:
    """Whether a Host header is an address, `localhost`, this machine's name or an allowed one: none of a foreign page.

    A page reaches this server through a name of its own that it lets point here (DNS rebinding).
    """
    name = host.rpartition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    if name.lower() in ("localhost", socket.gethostname().lower(), *map(str.lower, allowed)):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True

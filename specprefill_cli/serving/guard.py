"""Guards the application: who may ask, how much they may send, and how slowly."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from specprefill_cli.errors import SpecprefillError, first_line

# Seconds for a request's headers, and for its body; seconds that a connection may rest between requests.
HEADER_SECONDS, BODY_SECONDS, REST_SECONDS = 10.0, 60.0, 30
# Seconds until a connection is closed whose client reads nothing, and until a server that was told to stop ends.
WRITE_SECONDS, DRAIN_SECONDS = 30.0, 30
# Bytes of a request's headers; connections at a time.
MAX_HEADER_BYTES, MAX_CONNECTIONS = 32 * 1024, 512
OPEN_PATH = "/healthz"


class ApiError(Exception):
    """A request that is refused: status, message, and the error type by which clients tell refusals apart."""

    def __init__(
        self,
        status: int,
        message: str,
        error_type: str = "invalid_request_error",
        retry: int | None = None,
        cause: SpecprefillError | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error_type = error_type
        self.cause = cause
        self.headers = {"Retry-After": str(retry)} if retry is not None else {}

    @property
    def body(self) -> dict[str, Any]:
        """The error as OpenAI's API writes it."""
        error: dict[str, Any] = {"message": str(self), "type": self.error_type, "param": None, "code": None}
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


class TimedProtocol(H11Protocol):
    """HTTP connections that are closed where the client sends headers, or reads answers, too slowly.

    uvicorn bounds the size of headers and the rest between two requests, but neither of these.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.timers: dict[str, asyncio.TimerHandle] = {}
        self.expect_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self.expect_headers()
        else:
            self.cancel_timer("headers")

    def pause_writing(self) -> None:
        super().pause_writing()
        self.start_timer("reading", WRITE_SECONDS, "nothing read")

    def resume_writing(self) -> None:
        super().resume_writing()
        self.cancel_timer("reading")

    def connection_lost(self, exc: Exception | None) -> None:
        for name in list(self.timers):
            self.cancel_timer(name)
        super().connection_lost(exc)

    def expect_headers(self) -> None:
        """Close the connection unless the next request's headers come in time."""
        self.start_timer("headers", HEADER_SECONDS, "no complete headers")

    def start_timer(self, name: str, seconds: float, failure: str) -> None:
        """Close the connection after so many seconds, unless the timer is cancelled or runs already."""
        if name not in self.timers:
            reason = f"closed a connection: {failure} within {seconds:g} s"
            self.timers[name] = self.loop.call_later(seconds, self.abort, reason)

    def cancel_timer(self, name: str) -> None:
        """Stop a timer, if it runs."""
        if timer := self.timers.pop(name, None):
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
            http=TimedProtocol,
            ws="none",
            lifespan="off",
            log_level="critical",
            access_log=False,
            server_header=False,
            timeout_keep_alive=REST_SECONDS,
            timeout_graceful_shutdown=DRAIN_SECONDS,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            limit_concurrency=MAX_CONNECTIONS,
        )
    )


def log_line(text: str) -> None:
    """Write a line to standard error, if anybody reads it."""
    with contextlib.suppress(OSError, ValueError):
        print(f"specprefill serve: {text}", file=sys.stderr, flush=True)


def log_loop_error(_loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
    """Log an error of the event loop, such as too many open files, on one line."""
    error = context.get("exception")
    log_line(f"{context.get('message')}: {type(error).__name__}: {first_line(error)}" if error else str(context))


@dataclass(frozen=True)
class Guard:
    """Refuses requests without the token, and those that a page of another origin has made.

    token: None on the Unix socket: only this user can open it
    count: told of each response's path and status; allowed_hosts: names by which proxies and containers call the server
    """

    application: ASGIApp
    token: str | None
    count: Callable[[str, int], None]
    allowed_hosts: Sequence[str] = ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.count(scope["path"], message["status"])
            await send(message)

        refusal = self.refusal(scope)
        if refusal is not None:
            log_line(f"refused with {refusal.status}: {refusal}")
            await refusal.response()(scope, receive, send_counted)
        else:
            await self.application(scope, receive, send_counted)

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
        scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        if scheme.lower() != "bearer" or not token:
            return ApiError(401, "no token; send the header `Authorization: Bearer TOKEN`", "authentication_error")
        if not hmac.compare_digest(token.strip().encode("latin-1"), self.token.encode("latin-1")):
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

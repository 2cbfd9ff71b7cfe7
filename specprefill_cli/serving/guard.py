"""Checks in front of the application: who may ask, how much they may send, and how slowly."""

import asyncio
import contextlib
import hmac
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from specprefill_cli.errors import SpecprefillError

# Seconds for a request's headers, for its body, and between two requests of a connection.
HEADER_SECONDS, BODY_SECONDS, KEEP_ALIVE_SECONDS = 10.0, 60.0, 30
# Seconds after which the server drops a client that reads nothing.
WRITE_SECONDS = 30.0
# Seconds for running answers after a request to stop, and until a client may ask again while the models load.
DRAIN_SECONDS, LOADING_SECONDS = 30, 2
# Most bytes of a request's headers; most connections at a time.
MAX_HEADER_BYTES, MAX_CONNECTIONS = 32 * 1024, 512
OPEN_PATH = "/healthz"
# Missed deadlines of clients, in words.
HEADERS, READING = "no complete headers", "nothing read"


class ApiError(Exception):
    """A refused request. error_type: the type by which clients tell errors apart."""

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
            # This user's commands end with the same exit code as without a server.
            error |= {"name": type(self.cause).__name__, "exit_code": self.cause.exit_code}
        return {"error": error}

    def response(self) -> JSONResponse:
        return AsciiResponse(self.body, self.status, self.headers)


class AsciiResponse(JSONResponse):
    """JSON in ASCII, as on standard output, because file names may hold characters that UTF-8 cannot encode."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False).encode("ascii")


class GuardedProtocol(H11Protocol):
    """Closes connections of clients that send headers or read answers too slowly."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.timers: dict[str, asyncio.TimerHandle] = {}
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
        if event not in self.timers:
            reason = f"closed a connection: {event} within {seconds:g} s"
            self.timers[event] = self.loop.call_later(seconds, self.abort, reason)

    def forget(self, event: str) -> None:
        if timer := self.timers.pop(event, None):
            timer.cancel()

    def abort(self, reason: str) -> None:
        if not self.transport.is_closing():
            log_line(reason)
            self.transport.abort()


class SilentServer(uvicorn.Server):
    """A server that leaves signals to its caller."""

    capture_signals = contextlib.nullcontext  # type: ignore[assignment]


def http_server(application: ASGIApp, allowed_origins: Sequence[str] = ()) -> SilentServer:
    """Build an application's server; the caller passes its socket. allowed_origins: of pages that may ask, or `*`."""
    if allowed_origins:
        application = CORSMiddleware(
            application, allowed_origins, allow_methods=("*",), allow_headers=("*",), expose_headers=("*",)
        )
    limits: dict[str, Any] = {"timeout_keep_alive": KEEP_ALIVE_SECONDS, "timeout_graceful_shutdown": DRAIN_SECONDS}
    limits |= {"h11_max_incomplete_event_size": MAX_HEADER_BYTES, "limit_concurrency": MAX_CONNECTIONS}
    quiet: dict[str, Any] = {"log_level": "critical", "access_log": False, "server_header": False}
    return SilentServer(uvicorn.Config(application, http=GuardedProtocol, ws="none", lifespan="off", **quiet, **limits))


def log_line(text: str) -> None:
    """Write a line on standard error."""
    with contextlib.suppress(OSError, ValueError):
        print(f"specprefill serve: {text}", file=sys.stderr, flush=True)


@dataclass
class Guard:
    """Refuses requests without the token, which no foreign web page knows, and all requests while the models load.

    token: None on the Unix socket
    state: reply of /healthz while the models load; application: None until they are loaded
    """

    token: str | None
    state: Mapping[str, Any] = field(default_factory=dict)
    application: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self.auth_error(scope)
        if refused is not None:
            log_line(f"refused with {refused.status}: {refused}")
            await refused.response()(scope, receive, send)
        elif self.application is not None:
            await self.application(scope, receive, send)
        elif scope["path"] == OPEN_PATH:
            await AsciiResponse({"status": "loading", **self.state}, 503)(scope, receive, send)
        else:
            loading = ApiError(503, "the models are loading; ask again soon", "overloaded", LOADING_SECONDS)
            await loading.response()(scope, receive, send)

    def auth_error(self, scope: Scope) -> ApiError | None:
        """The error for a request to refuse; None for a request to accept."""
        if self.token is None or (scope["path"] == OPEN_PATH and scope["method"] in ("GET", "HEAD")):
            return None
        scheme, _, token = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1").partition(" ")
        if scheme.lower() != "bearer" or not token:
            return ApiError(401, "no token; send the header `Authorization: Bearer TOKEN`", "authentication_error")
        if not hmac.compare_digest(token.strip().encode("latin-1"), self.token.encode("latin-1")):
            return ApiError(401, "wrong token", "authentication_error")
        return None

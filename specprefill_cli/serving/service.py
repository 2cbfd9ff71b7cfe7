"""The server's process: an event loop for HTTP, beside the thread that loads the models and owns them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Receive, Scope, Send

from specprefill_cli.errors import SpecprefillError, first_line
from specprefill_cli.serving.guard import ApiError, Guard, SilentServer, http_server, log_line, report_loop_error

if TYPE_CHECKING:
    from specprefill_cli.engine.local import LocalEngine

# Seconds between two looks at the clock of the idle limit.
IDLE_CHECK = 1.0
# Seconds after which a client may ask again while the models load.
LOADING_SECONDS = 2


@dataclass
class Site:
    """A listening socket and what answers on it: until the models are loaded, that they are loading.

    guard: stands before the application; health: answers /healthz, also while loading
    """

    listener: socket.socket
    health: ASGIApp
    application: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.application is not None:
            await self.application(scope, receive, send)
        elif scope["path"] == "/healthz":
            await self.health(scope, receive, send)
        else:
            refusal = ApiError(503, "the models are loading; ask again soon", "overloaded", LOADING_SECONDS)
            await refusal.response()(scope, receive, send)


@dataclass
class Service:
    """Serves sites until it is told to stop; then finishes the answers in hand.

    load: loads the models, gives the sites their applications, and returns the engine; runs in the engine's thread
    idle: seconds without work after which it ends; None: never
    ready: called when the models are loaded
    """

    load: Callable[[], LocalEngine]
    idle: float | None
    ready: Callable[[], None]
    engine: LocalEngine | None = None
    failure: BaseException | None = None
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, guards: list[tuple[socket.socket, Guard]]) -> int:
        """Serve; the exit code. Raises SpecprefillError where the models cannot be loaded."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(report_loop_error)
        if os.name == "posix":
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self.stopped.set)
        worker = threading.Thread(target=self.work, args=(loop,), name="engine", daemon=True)
        worker.start()
        servers = [http_server(guard) for _, guard in guards]
        serving = [
            asyncio.create_task(server.serve([listener])) for server, (listener, _) in zip(servers, guards, strict=True)
        ]
        idle = asyncio.create_task(self.watch_idleness())
        await self.stopped.wait()
        idle.cancel()
        await self.close(servers, serving)
        if self.engine is not None and self.failure is None:
            self.engine.close()
            await asyncio.to_thread(worker.join)
        if isinstance(self.failure, SpecprefillError):
            raise self.failure
        if self.failure is not None:
            log_line(f"the engine failed with {type(self.failure).__name__}: {first_line(self.failure)}")
        return SpecprefillError.exit_code if self.failure is not None else 0

    async def close(self, servers: list[SilentServer], serving: list[asyncio.Task[None]]) -> None:
        """Take no more connections, and finish those in hand."""
        for server in servers:
            server.should_exit = True
            server.force_exit = self.engine is None or self.failure is not None
        await asyncio.gather(*serving, return_exceptions=True)

    def work(self, loop: asyncio.AbstractEventLoop) -> None:
        """The engine's thread; without it nothing can be answered, so that the service ends with it."""
        try:
            engine = self.load()
            self.engine = engine
            self.ready()
            engine.run()
            if not self.stopped.is_set():
                self.failure = RuntimeError("it has given up")
        except BaseException as error:
            self.failure = error
        finally:
            loop.call_soon_threadsafe(self.stopped.set)

    async def watch_idleness(self) -> None:
        """Stop after the idle limit."""
        while self.idle is not None:
            await asyncio.sleep(min(IDLE_CHECK, self.idle))
            engine = self.engine
            if engine is None or engine.busy:
                continue
            if time.monotonic() - engine.last_active >= self.idle:
                log_line(f"ends after {self.idle:g} s without work")
                self.stopped.set()
                return

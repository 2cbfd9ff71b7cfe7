"""The server's process: the lock and the sockets first, then an event loop for HTTP, and a thread that owns the models."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Receive, Scope, Send

from specprefill_cli.errors import SpecprefillError, first_line
from specprefill_cli.models.memory import import_transformers
from specprefill_cli.serving.control import Identity, identity_of, server_state
from specprefill_cli.serving.guard import ApiError, Guard, SilentServer, http_server, log_line, report_loop_error
from specprefill_cli.serving.listening import (
    HAS_UNIX_SOCKETS,
    Listeners,
    listen,
    private_folder,
    sole_server,
    token_folder,
)
from specprefill_cli.settings import Settings

if TYPE_CHECKING:
    from specprefill_cli.documents.document import Collection
    from specprefill_cli.engine.local import LocalEngine
    from specprefill_cli.models.refs import EndpointRef
    from specprefill_cli.serving.metrics import Metrics

# Seconds between two looks at the clock of the idle limit.
IDLE_CHECK = 1.0
# Seconds after which a client may ask again while the models load.
LOADING_SECONDS = 2
WARM_UP_QUESTION = "What is this about?"


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


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Options of `serve` that are no settings; idle_seconds: None for no limit.

    upstream: the server that this one is a proxy of; shadow: share of thinned requests that are sent whole, too
    """

    http: str | None
    token_file: Path | None
    allowed_hosts: tuple[str, ...]
    idle_seconds: float | None
    queue: int
    queue_seconds: float
    body_bytes: int
    log_requests: bool
    upstream: EndpointRef | None = None
    shadow: float = 0.0


def start(settings: Settings, own: Collection | None, options: ServeOptions, tell: Callable[[str], None]) -> int:
    """Serve until told to stop; the exit code.

    own: documents to read ahead

    Raises SpecprefillError when the models cannot be loaded, nothing can be listened on, or a server with other settings runs.
    """
    with ExitStack() as stack:
        folder = private_folder() if HAS_UNIX_SOCKETS else token_folder()
        identity, alone = identity_of(settings), options.upstream is None
        if alone:
            lock = sole_server(folder)
            if lock is None:
                check_same(identity)
                tell("a server is running already; `specprefill serve --status` shows it")
                return 0
            stack.callback(os.close, lock)
        # Commands ask no proxy: of those any number may run.
        listeners = listen(folder, options.http, options.token_file, stack, tell, alone and HAS_UNIX_SOCKETS)
        return asyncio.run(serve(settings, own, options, identity, listeners, tell))


def check_same(identity: Identity) -> None:
    """Raises SpecprefillError where the running server has other settings than would be served now."""
    state = server_state() if HAS_UNIX_SOCKETS else None
    difference = identity.difference(state.get("identity") or {}) if state is not None else None
    if difference is not None:
        raise SpecprefillError(f"{difference}; end it with `specprefill serve --stop` first")


async def serve(
    settings: Settings,
    own: Collection | None,
    options: ServeOptions,
    identity: Identity,
    listeners: Listeners,
    tell: Callable[[str], None],
) -> int:
    """Load the models while HTTP is answered, and serve; the exit code."""
    from specprefill_cli.serving.api import health_application
    from specprefill_cli.serving.metrics import Metrics

    metrics = Metrics()
    places = [(listeners.unix, None), (listeners.http, listeners.token)]
    sites = [
        (Site(listener, health_application(identity, listeners.addresses, told=token is None)), token)
        for listener, token in places
        if listener is not None
    ]
    service = Service(
        load=lambda: load(settings, own, options, identity, sites, metrics, listeners.addresses),
        idle=options.idle_seconds,
        ready=lambda: tell(f"ready: {', '.join(listeners.addresses)}; Ctrl-C ends it"),
    )
    guards = [(site.listener, Guard(site, token, metrics.count, options.allowed_hosts)) for site, token in sites]
    code = await service.run(guards)
    if service.engine is None and not code:
        # Nothing can stop the thread that still loads the models.
        for listener in (listeners.unix, listeners.http):
            if listener is not None:
                listener.close()
        for address in listeners.addresses:
            if os.path.isabs(address):
                Path(address).unlink(missing_ok=True)
        os._exit(0)
    return code


def load(
    settings: Settings,
    own: Collection | None,
    options: ServeOptions,
    identity: Identity,
    sites: list[tuple[Site, str | None]],
    metrics: Metrics,
    addresses: tuple[str, ...],
) -> LocalEngine:
    """Load the models, read ahead, and let the sites answer."""
    import_transformers()
    from specprefill_cli.answering.session import open_session
    from specprefill_cli.engine.local import LocalEngine
    from specprefill_cli.prefill.prefix_cache import document_cache
    from specprefill_cli.serving.api import application
    from specprefill_cli.serving.backend import Backend, Limits

    site_application = application
    if options.upstream is not None:
        from specprefill_cli.serving.proxy import open_reader, proxy_application

        session = open_reader(settings, options.upstream)
        site_application = partial(proxy_application, upstream=options.upstream, shadow=options.shadow)
    else:
        session = open_session(settings, draft=True)
        session.warm_up(settings)
    cache = document_cache(settings.memory_cache, session.pair)
    session = session.with_cache(cache)
    engine = LocalEngine(session, independent=True, observe=metrics.observe)
    metrics.watch(engine, cache)
    if own is not None:
        # Whatever the question, this leaves the KV of the documents behind.
        session.ask(own, WARM_UP_QUESTION, settings.varied(max_new_tokens=1)).finished()
    backend = Backend(
        engine=engine,
        session=session,
        own=own,
        limits=Limits(body_bytes=options.body_bytes, queue=options.queue, queue_seconds=options.queue_seconds),
        metrics=metrics,
        identity=identity,
        addresses=addresses,
        log_requests=options.log_requests,
    )
    for site, token in sites:
        site.application = site_application(backend, paths_allowed=token is None)
    return engine

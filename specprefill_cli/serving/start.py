"""The server's process: the lock and the sockets first, then the models, then an event loop beside the engine's thread."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp

from specprefill_cli import __version__
from specprefill_cli.errors import SpecprefillError, first_line
from specprefill_cli.models.memory import import_transformers
from specprefill_cli.serving.backend import Backend, ServeOptions
from specprefill_cli.serving.control import Identity, difference, identity_of, server_state
from specprefill_cli.serving.guard import Guard, http_server, log_line, log_loop_error
from specprefill_cli.serving.listening import HAS_UNIX_SOCKETS, listen, private_folder, sole_server
from specprefill_cli.serving.metrics import Metrics
from specprefill_cli.settings import Settings

if TYPE_CHECKING:
    from specprefill_cli.documents.document import Collection
    from specprefill_cli.engine.local import LocalEngine

WARM_UP_QUESTION = "What is this about?"


def start(settings: Settings, documents: Collection | None, options: ServeOptions, tell: Callable[[str], None]) -> int:
    """Serve until told to stop; the exit code.

    documents: to read ahead

    Raises SpecprefillError when the models cannot be loaded, nothing can be listened on, or a server with other settings runs.
    """
    with ExitStack() as stack:
        folder, identity, is_proxy = private_folder(), identity_of(settings), options.upstream is not None
        lock = None
        # Commands ask no proxy, so that any number of proxies may run.
        if not is_proxy:
            lock = sole_server(folder)
            if lock is None:
                check_same(identity)
                tell("a server is running already; `specprefill serve --status` shows it")
                return 0
            stack.callback(os.close, lock)
        on_socket = HAS_UNIX_SOCKETS and not is_proxy
        listeners = listen(folder, options.http, options.token_file, stack, tell, on_socket)
        addresses = [listener.address for listener in listeners]
        about = {"version": __version__, "process": os.getpid(), "addresses": addresses, "identity": identity}
        if on_socket and lock is not None:
            # For `--status` and `--stop` while the models load.
            os.truncate(lock, 0)
            os.write(lock, json.dumps(about).encode())
        try:
            backend, application = load(settings, documents, options, about)
        except KeyboardInterrupt:
            return 0
        count, hosts = backend.metrics.count, options.allowed_hosts
        sites = [(Guard(application(token is None), token, count, hosts), bound) for bound, token, _ in listeners]
        for listener in listeners:
            listener.socket.listen()
        tell(f"ready: {', '.join(addresses)}; Ctrl-C ends it")
        return asyncio.run(serve(backend.engine, sites))


def load(
    settings: Settings, documents: Collection | None, options: ServeOptions, about: dict[str, Any]
) -> tuple[Backend, Callable[[bool], ASGIApp]]:
    """Load the models and read the documents ahead; the backend, and a function that makes the application of a socket.

    Its argument: whether requests may name files
    """
    import_transformers()
    from specprefill_cli.answering.session import open_session
    from specprefill_cli.engine.local import LocalEngine
    from specprefill_cli.prefill.prefix_cache import document_cache
    from specprefill_cli.serving.api import application

    if options.upstream is not None:
        from specprefill_cli.serving.proxy import open_reader

        session = open_reader(settings, options.upstream)
    else:
        session = open_session(settings, draft=True)
        session.warm_up(settings)
    cache, metrics = document_cache(settings.memory_cache, session.pair), Metrics()
    session = session.with_cache(cache)
    engine = LocalEngine(session, independent=True, observe=metrics.observe)
    metrics.watch(engine, cache)
    if documents is not None:
        # Whatever the question, this leaves the KV of the documents behind.
        session.ask(documents, WARM_UP_QUESTION, settings.varied(max_new_tokens=1)).finished()
    backend = Backend(engine=engine, documents=documents, options=options, metrics=metrics, about=about)
    if options.upstream is None:
        return backend, partial(application, backend)
    from specprefill_cli.serving.proxy import proxy_application

    return backend, lambda _paths_allowed: proxy_application(backend, options.upstream)


async def serve(engine: LocalEngine, sites: Sequence[tuple[ASGIApp, socket.socket]]) -> int:
    """Answer until a signal comes or the engine fails, and finish the answers in hand; the exit code.

    sites: applications with the sockets on which they answer
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    loop.set_exception_handler(log_loop_error)
    if os.name == "posix":
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
    working = asyncio.ensure_future(asyncio.to_thread(engine.run))
    working.add_done_callback(lambda _: stop.set())
    servers = [http_server(application) for application, _ in sites]
    serving = [
        asyncio.create_task(server.serve([listener])) for server, (_, listener) in zip(servers, sites, strict=True)
    ]
    try:
        await stop.wait()
        failed = working.done()
        for server in servers:
            server.should_exit, server.force_exit = True, failed
        await asyncio.gather(*serving, return_exceptions=True)
    finally:
        engine.close()
    (outcome,) = await asyncio.gather(working, return_exceptions=True)
    if not failed:
        return 0
    reason = f"{type(outcome).__name__}: {first_line(outcome)}" if isinstance(outcome, BaseException) else "its device"
    log_line(f"the engine failed with {reason}")
    return SpecprefillError.exit_code


def check_same(identity: Identity) -> None:
    """Raises SpecprefillError where the running server has other settings than would be served now."""
    state = server_state()
    reason = difference(identity, state.get("identity") or {}) if state is not None else None
    if reason is not None:
        raise SpecprefillError(f"{reason}; end it with `specprefill serve --stop` first")

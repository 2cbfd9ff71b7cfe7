"""Starts a server: the sockets first, then on Linux the engine in a process of its own, and the host in this one."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from specprefill_cli.errors import SpecprefillError, first_line
from specprefill_cli.models.light_import import import_transformers
from specprefill_cli.serving.command import Runner
from specprefill_cli.serving.host import Host
from specprefill_cli.serving.listening import Listeners, listen, private_folder, sole_server, token_folder
from specprefill_cli.serving.places import HAS_UNIX_SOCKETS, TAKES_COMMANDS
from specprefill_cli.serving.served import Served, loading_variables, model_places
from specprefill_cli.settings import Settings
from specprefill_cli.signals import deferred_signals

if TYPE_CHECKING:
    from specprefill_cli.documents.collection import Collection
    from specprefill_cli.serving.guard import Guard
    from specprefill_cli.serving.service import Service

READY = b"r"
WARM_UP_QUESTION = "What is this about?"


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Options of `serve` that are no settings; idle_seconds: None for no limit."""

    http: str | None
    token_file: Path | None
    idle_seconds: float | None
    queue: int
    queue_seconds: float
    body_bytes: int
    log_requests: bool


@dataclass(frozen=True)
class CommandLine:
    """The command line that runs commands.

    run: runs the one in `sys.argv`: when the caller started, and the server that has taken the command
    prepare: does before any command is forked what each would otherwise do for itself
    """

    run: Callable[[float, Served], None]
    prepare: Callable[[], None]


def start(
    settings: Settings,
    own: Collection | None,
    options: ServeOptions,
    command_line: CommandLine,
    tell: Callable[[str], None],
) -> int:
    """Serve until told to stop; the exit code.

    own: documents to read ahead; command_line: runs the commands that come

    Raises SpecprefillError when the models cannot be loaded or nothing can be listened on.
    """
    with ExitStack() as stack:
        folder = private_folder() if HAS_UNIX_SOCKETS else token_folder()
        lock = sole_server(folder)
        if lock is None:
            tell("a server is running already; `specprefill serve --status` shows it")
            return 0
        stack.callback(os.close, lock)
        listeners = listen(folder, options.http, options.token_file, stack, tell)
        import_transformers()
        if not TAKES_COMMANDS:
            return run_engine(settings, own, options, listeners, None, tell)
        return run_host(settings, own, options, listeners, lock, command_line, tell)


def run_host(
    settings: Settings,
    own: Collection | None,
    options: ServeOptions,
    listeners: Listeners,
    lock: int,
    command_line: CommandLine,
    tell: Callable[[str], None],
) -> int:
    """Load the models in a forked process, and take commands in this one. lock: the descriptor of the server's lock."""
    command_line.prepare()
    assert listeners.command is not None
    ours, engines = socket.socketpair()
    process = 0
    try:
        # Python ignores a KeyboardInterrupt in what it runs itself after a fork.
        with deferred_signals():
            process = os.fork()
            if process == 0:
                ours.close()
                become_engine(partial(run_engine, settings, own, options, listeners, engines, tell), listeners.command)
        engines.close()
        for listener in filter(None, (listeners.unix, listeners.http)):
            listener.close()
        ready = ours.recv(1) == READY
    except BaseException:
        # The engine ignores Ctrl-C, and would go on loading with the server's lock.
        if process:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        raise
    if not ready:
        return engine_code(os.waitpid(process, 0)[1], tell)
    tell(f"ready: {', '.join(listeners.addresses)}; Ctrl-C ends it")

    def run_command(started: float, engine: socket.socket) -> None:
        command_line.run(started, Served(engine=engine, settings=settings, models=models, variables=variables))

    models, variables = model_places(settings), loading_variables()
    host = Host(listener=listeners.command, engine=ours, engine_process=process, lock=lock, run=Runner(run_command))
    status = host.serve()
    code = engine_code(status, tell) if status is not None else 0
    if code:
        tell("the engine has ended; commands go on without it")
    return code


def engine_code(status: int, tell: Callable[[str], None]) -> int:
    """The exit code of the engine's process, which has said why it failed unless a signal ended it. status: of `waitpid`."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return code
    tell(f"the engine was ended by {signal.Signals(-code).name}; was there too little memory?")
    return SpecprefillError.exit_code


def become_engine(run: Callable[[], int], command_listener: socket.socket) -> None:
    """In the forked process: run the engine and end. The host decides when; Ctrl-C reaches both."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    command_listener.close()
    code = 1
    try:
        code = run()
    except SpecprefillError as error:
        print(f"specprefill: {error}", file=sys.stderr, flush=True)
        code = error.exit_code
    except Exception as error:
        print(
            f"specprefill: the engine failed with {type(error).__name__}: {first_line(error)}",
            file=sys.stderr,
            flush=True,
        )
    finally:
        os._exit(code)


def run_engine(
    settings: Settings,
    own: Collection | None,
    options: ServeOptions,
    listeners: Listeners,
    host: socket.socket | None,
    tell: Callable[[str], None],
) -> int:
    """Load the models, read ahead, and serve; the exit code. host: the host's socket, where there is one."""
    service, sites = prepared(settings, own, options, listeners, host, tell)

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        if host is None and os.name == "posix":
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, service.stop)
        from specprefill_cli.serving.service import Site

        await service.run([Site(listener, guard) for listener, guard in sites])

    try:
        asyncio.run(serve())
    finally:
        # The engine's process runs nothing that is registered with atexit.
        if host is not None:
            service.session.pair.ranks.finish()
    return SpecprefillError.exit_code if service.failed else 0


def prepared(
    settings: Settings,
    own: Collection | None,
    options: ServeOptions,
    listeners: Listeners,
    host: socket.socket | None,
    tell: Callable[[str], None],
) -> tuple[Service, list[tuple[socket.socket, Guard]]]:
    """The loaded engine's service, and its HTTP applications by listening socket."""
    from specprefill_cli.answering.session import open_session
    from specprefill_cli.batching.scheduler import Scheduler
    from specprefill_cli.prefill.cache_limit import document_cache
    from specprefill_cli.serving.api import application
    from specprefill_cli.serving.backend import Backend, Limits
    from specprefill_cli.serving.engine import Engine
    from specprefill_cli.serving.metrics import Metrics
    from specprefill_cli.serving.service import Service

    session = open_session(settings, draft=True)
    session.warm_up(settings)
    cache = document_cache(settings.memory_cache, session.pair)
    session = session.with_cache(cache)
    metrics = Metrics()
    engine = Engine(Scheduler(session), observe=metrics.observe)
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
        pair_name=session.pair.pair.name,
        addresses=listeners.addresses,
        hosted=host is not None,
        log_requests=options.log_requests,
    )
    sites = []
    if listeners.unix is not None:
        sites.append((listeners.unix, application(backend, None)))
    if listeners.http is not None:
        sites.append((listeners.http, application(backend, listeners.token)))

    def ready() -> None:
        if host is None:
            tell(f"ready: {', '.join(listeners.addresses)}; Ctrl-C ends it")
        else:
            host.send(READY)

    service = Service(engine=engine, session=session, host=host, idle=options.idle_seconds, ready=ready)
    return service, sites

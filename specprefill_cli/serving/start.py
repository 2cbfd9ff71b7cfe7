"""The server's process: lock and sockets, an event loop for HTTP, a thread that owns the models, and metrics."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from specprefill_cli import __version__
from specprefill_cli.documents.document import Collection
from specprefill_cli.errors import SpecprefillError, first_line
from specprefill_cli.models.machine.process import import_transformers
from specprefill_cli.serving.context import Metrics, ServeOptions, ServerContext
from specprefill_cli.serving.control import Listener, listen, private_folder, server_identity, server_lock
from specprefill_cli.serving.guard import Guard, http_server, log_line
from specprefill_cli.settings import Settings

if TYPE_CHECKING:
    from specprefill_cli.engine.local import LocalEngine


@dataclass(kw_only=True)
class Service:
    """Loads the models while HTTP is already answered, serves until a request to stop, and finishes running answers.

    documents: to prefill before the first question; listeners: as `listen` returns them
    """

    settings: Settings
    documents: Collection | None
    options: ServeOptions
    listeners: list[Listener]
    tell: Callable[[str], None]
    metrics: Metrics = field(default_factory=Metrics)
    engine: "LocalEngine | None" = None
    failure: BaseException | None = None
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.addresses = [address for _, address, _ in self.listeners]
        process = {"version": __version__, "process": os.getpid()}
        self.about = process | {"addresses": self.addresses, "identity": server_identity(self.settings)}
        tokens = [token for *_, token in self.listeners]
        self.guards = [Guard(token, self.about if token is None else {}) for token in tokens]

    async def run(self) -> int:
        """Serve, and return the exit code. Raises SpecprefillError where the models cannot be loaded."""
        loop = asyncio.get_running_loop()
        if os.name == "posix":
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self.stopped.set)
        worker = threading.Thread(target=self.work, args=(loop,), name="engine", daemon=True)
        worker.start()
        servers = [http_server(guard, self.options.allowed_origins) for guard in self.guards]
        sockets = [listener for listener, *_ in self.listeners]
        serving = [asyncio.create_task(server.serve([own])) for server, own in zip(servers, sockets, strict=True)]
        await self.stopped.wait()
        for server in servers:
            server.should_exit = True
            server.force_exit = self.engine is None or self.failure is not None
        await asyncio.gather(*serving, return_exceptions=True)
        if isinstance(self.failure, SpecprefillError):
            raise self.failure
        if self.failure is not None:
            log_line(f"the engine failed with {type(self.failure).__name__}: {first_line(self.failure)}")
            return SpecprefillError.exit_code
        if self.engine is not None:
            self.engine.close()
            await asyncio.to_thread(worker.join)
        return 0

    def work(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the engine in this thread. The service ends with it, because nothing else can answer."""
        try:
            self.engine = engine = self.load()
            self.tell(f"ready: {', '.join(self.addresses)}; Ctrl-C ends it")
            engine.run()
            if not self.stopped.is_set():
                self.failure = RuntimeError("it has ended")
        except BaseException as error:
            self.failure = error
        finally:
            loop.call_soon_threadsafe(self.stopped.set)

    def load(self) -> "LocalEngine":
        """Load the models, prefill the documents, and let the sockets answer."""
        import_transformers(self.settings.tensor_parallel)
        from specprefill_cli.answering.session import open_session
        from specprefill_cli.engine.local import LocalEngine
        from specprefill_cli.prefill.prefix_cache import document_cache
        from specprefill_cli.prefill.shortlist import characters_read
        from specprefill_cli.serving.chat import chat_application

        settings, make_application = self.settings, chat_application
        if self.options.upstream is not None:
            from specprefill_cli.serving.proxy import open_draft, proxy_application

            session = open_draft(settings, self.options.upstream)
            make_application = partial(proxy_application, upstream=self.options.upstream)
        else:
            session = open_session(settings, draft=True)
            session.warm_up(settings)
        cache = document_cache(settings.memory_cache, session.pair)
        session = session.with_cache(cache)
        engine = LocalEngine(session, independent=True)
        self.metrics.watch(engine, cache)
        # Of many documents each question reads other parts.
        if self.documents is not None and characters_read(self.documents, settings) is None:
            # Any question about one place leaves the KV of the documents in the cache.
            session.ask(self.documents, "When?", settings.varied(max_new_tokens=1)).finished()
        context = ServerContext(engine, self.documents, self.metrics, self.about)
        for guard in self.guards:
            guard.application = make_application(replace(context, is_private=guard.token is None))
        return engine


def run_server(
    settings: Settings, documents: Collection | None, options: ServeOptions, tell: Callable[[str], None]
) -> int:
    """Serve until a request to stop, and return the exit code. documents: to prefill before the first question.

    Raises SpecprefillError where the models cannot be loaded, no socket can be opened, or a server runs.
    """
    with ExitStack() as stack:
        folder, is_proxy = private_folder(), options.upstream is not None
        try:
            if not is_proxy:
                stack.enter_context(server_lock())
        except TimeoutError:
            remedy = "end it with `specprefill serve --stop` first"
            raise SpecprefillError(f"your server is running already; {remedy}") from None
        service = Service(
            settings=settings,
            documents=documents,
            options=options,
            # Commands never ask a proxy, so any number of proxies may run.
            listeners=listen(folder, options.http, not is_proxy, stack, tell),
            tell=tell,
        )
        code = asyncio.run(service.run())
        if service.engine is None and code == 0:
            # The thread that still loads the models cannot be stopped.
            stack.close()
            os._exit(0)
        return code

"""Starts a server: the lock and the sockets first, then the models."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.light_import import import_transformers
from specprefill_cli.serving.control import server_state
from specprefill_cli.serving.identity import Identity, identity_of
from specprefill_cli.serving.listening import Listeners, listen, private_folder, sole_server, token_folder
from specprefill_cli.serving.places import HAS_UNIX_SOCKETS
from specprefill_cli.settings import Settings

if TYPE_CHECKING:
    from specprefill_cli.documents.collection import Collection
    from specprefill_cli.engine.local import LocalEngine
    from specprefill_cli.models.refs import EndpointRef
    from specprefill_cli.serving.service import Site

WARM_UP_QUESTION = "What is this about?"


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
    from specprefill_cli.serving.guard import Guard
    from specprefill_cli.serving.metrics import Metrics
    from specprefill_cli.serving.service import Service, Site

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
    metrics: object,
    addresses: tuple[str, ...],
) -> LocalEngine:
    """Load the models, read ahead, and let the sites answer."""
    import_transformers()
    from specprefill_cli.answering.session import open_session
    from specprefill_cli.engine.local import LocalEngine
    from specprefill_cli.prefill.prefix_cache import document_cache
    from specprefill_cli.serving.api import application
    from specprefill_cli.serving.backend import Backend, Limits
    from specprefill_cli.serving.metrics import Metrics

    assert isinstance(metrics, Metrics)
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

"""The engine's process: an event loop for HTTP and for commands, beside the thread that owns the session."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specprefill_cli.serving.channel import Channel, open_channel
from specprefill_cli.serving.engine import Engine
from specprefill_cli.serving.guard import Guard, http_server, log_line
from specprefill_cli.serving.messages import Open
from specprefill_cli.serving.views import as_loaded, command_session

if TYPE_CHECKING:
    from specprefill_cli.answering.session import Session
    from specprefill_cli.prefill.calibration import CalibratedPair

# Seconds between two looks at the clock of the idle limit.
IDLE_CHECK = 1.0


@dataclass
class Site:
    """An HTTP application, and the listening socket that it is served on."""

    listener: socket.socket
    application: Guard


@dataclass
class Service:
    """Serves HTTP sites, and commands whose sockets come from the host, until the host's end closes.

    host: None without a host; then `stop` ends the service
    idle: seconds without work after which it ends; None: never
    ready: called when everything listens; failed: whether the engine ended without being told to
    """

    engine: Engine
    session: Session
    host: socket.socket | None
    idle: float | None
    ready: Callable[[], None]
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    failed: bool = False
    channels: dict[asyncio.Task[None], Channel] = field(default_factory=dict)
    pairs: dict[tuple[bool, bool], CalibratedPair] = field(default_factory=dict)

    async def run(self, sites: list[Site]) -> None:
        """Serve until told to stop; then finish the jobs in hand."""
        loop = asyncio.get_running_loop()
        worker = threading.Thread(target=self.work, args=(loop,), name="engine", daemon=True)
        worker.start()
        servers = [http_server(site.application) for site in sites]
        serving = [
            asyncio.create_task(server.serve([site.listener])) for server, site in zip(servers, sites, strict=True)
        ]
        if self.host is not None:
            loop.add_reader(self.host.fileno(), self.take_command)
        idle = asyncio.create_task(self.watch_idleness())
        self.ready()
        await self.stopped.wait()
        idle.cancel()
        if self.host is not None:
            # The host then takes no more commands: nobody would serve them.
            loop.remove_reader(self.host.fileno())
            self.host.close()
        for channel in self.channels.values():
            channel.close()
        for server in servers:
            server.should_exit = True
        await asyncio.gather(*serving, *self.channels, return_exceptions=True)
        self.engine.close()
        await asyncio.to_thread(worker.join)

    def work(self, loop: asyncio.AbstractEventLoop) -> None:
        """The engine's thread; without it nothing can be answered, so that the service ends with it."""
        try:
            self.engine.run()
        finally:
            self.failed = not self.stopped.is_set()
            loop.call_soon_threadsafe(self.stopped.set)

    def stop(self) -> None:
        """Stop after the jobs in hand."""
        self.stopped.set()

    def take_command(self) -> None:
        """Serve the command whose socket the host sends; stop when the host has closed its end."""
        assert self.host is not None
        content, files, _, _ = socket.recv_fds(self.host, 1, 1)
        if not content:
            self.stop()
            return
        for file in files:
            task = asyncio.create_task(self.serve_command(socket.socket(fileno=file)))
            task.add_done_callback(lambda task: self.channels.pop(task, None))

    async def serve_command(self, connection: socket.socket) -> None:
        """Serve one command's process."""
        channel = await open_channel(connection, self.engine, self.session_of)
        task = asyncio.current_task()
        assert task is not None
        self.channels[task] = channel
        await channel.serve()
        self.engine.last_active = time.monotonic()

    def session_of(self, opening: Open) -> Session:
        """The session that suits a command."""
        key = (opening.draft, opening.target_weights)
        if key not in self.pairs:
            self.pairs[key] = self.session.pair if all(key) else as_loaded(self.session.pair, *key)
        return command_session(self.session, opening, self.pairs[key])

    async def watch_idleness(self) -> None:
        """Stop after the idle limit."""
        while self.idle is not None:
            await asyncio.sleep(min(IDLE_CHECK, self.idle))
            quiet = time.monotonic() - self.engine.last_active
            if not self.engine.busy and not self.channels and quiet >= self.idle:
                log_line(f"ends after {self.idle:g} s without work")
                self.stop()
                return

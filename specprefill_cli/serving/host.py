"""The host: takes commands from the command socket, and forks a process for each. It has one thread and no models."""

from __future__ import annotations

import gc
import os
import selectors
import signal
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

# Runs a command on a connection, with a socket to the engine; it does not return.
Runner = Callable[[socket.socket, socket.socket], None]
# Seconds after which what still runs is ended, once the server was told to stop.
DRAIN_SECONDS = 30
ENGINE_LINK = b"c"
# The status of a process that ended with exit code 1.
FAILED = 1 << 8


@dataclass
class Host:
    """Forks a process for each command until it is told to stop, or the engine ends.

    listener: the command socket; engine: the socket to the engine, whose end closes when the engine ends
    engine_process: its process id; lock: the descriptor of the server's lock, which a command must not keep
    run: what a forked process does; killed: whether this process has ended the engine
    """

    listener: socket.socket
    engine: socket.socket
    engine_process: int
    lock: int
    run: Runner
    children: set[int] = field(default_factory=set)
    stopping: bool = False
    killed: bool = False

    def serve(self) -> int | None:
        """Serve until SIGINT, SIGTERM or the engine's end; the engine's status as of `waitpid` where it ended by itself."""
        wake, woken = socket.socketpair()
        for end in (wake, woken):
            end.setblocking(False)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # What is here stays: forked processes then share its pages.
        gc.collect()
        gc.freeze()
        with selectors.DefaultSelector() as selector:
            for source in (self.listener, self.engine, woken):
                selector.register(source, selectors.EVENT_READ)
            while not self.stopping:
                ready = {key.fileobj for key, _ in selector.select()}
                if woken in ready:
                    with suppress(BlockingIOError):
                        woken.recv(1024)
                    self.reap()
                if self.engine in ready:
                    break
                if self.listener in ready:
                    self.accept()
        self.listener.close()
        return self.drain()

    def stop(self, number: int, _frame: object) -> None:
        """Stop after what runs; a second signal ends what runs."""
        if self.stopping:
            self.end_children()
            with suppress(ProcessLookupError):
                self.end_engine()
        self.stopping = True

    def accept(self) -> None:
        """Fork for the next connection, unless it is another user's."""
        try:
            connection, _ = self.listener.accept()
        except OSError:
            return
        with connection:
            connection.settimeout(None)
            if peer_user(connection) != os.getuid():
                return
            ours, engines = socket.socketpair()
            with ours, engines:
                try:
                    socket.send_fds(self.engine, [ENGINE_LINK], [engines.fileno()])
                    child = os.fork()
                except OSError:
                    return
                if child == 0:
                    # Else the engine's end would never look closed.
                    engines.close()
                    self.become_command(connection, ours)
                self.children.add(child)

    def become_command(self, connection: socket.socket, engine: socket.socket) -> None:
        """In the forked process: leave the host's signals, terminal and sockets, and run the command."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
            # Ctrl-C at the server's terminal is not for its commands.
            os.setsid()
            self.listener.close()
            self.engine.close()
            os.close(self.lock)
            self.run(connection, engine)
            code = 0
        finally:
            os._exit(code)

    def reap(self) -> None:
        """Collect the commands that have ended; the engine's status is left to `drain`."""
        for child in list(self.children):
            if os.waitpid(child, os.WNOHANG)[0] == child:
                self.children.discard(child)

    def drain(self) -> int | None:
        """Let the engine answer what it was asked, which ends with its process; its status where it ended by itself."""
        ended_by_itself = not self.stopping
        self.engine.close()
        signal.signal(signal.SIGALRM, lambda *_: self.end_engine())
        signal.setitimer(signal.ITIMER_REAL, DRAIN_SECONDS)
        status = os.waitpid(self.engine_process, 0)[1]
        signal.setitimer(signal.ITIMER_REAL, 0)
        if not ended_by_itself:
            return None
        return FAILED if self.killed else status

    def end_engine(self) -> None:
        """End the engine at once."""
        self.killed = True
        os.kill(self.engine_process, signal.SIGKILL)

    def end_children(self) -> None:
        """End the commands that still run."""
        for child in self.children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)


def peer_user(connection: socket.socket) -> int:
    """The user id of the process at the other end of a Unix socket, by SO_PEERCRED."""
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(user)

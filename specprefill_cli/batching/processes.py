"""Workers as processes on this machine: one that crashes, or whose device fails, takes nothing else with it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from queue import SimpleQueue
from typing import NoReturn

from specprefill_cli.batching.executor import AHEAD, Event, Inbox, Lost, Opener, Place, Ready, Refused, Task, Told
from specprefill_cli.batching.worker import Worker

# Seconds until a process that does not end by itself is killed.
CLOSING = 3.0


class Processes:
    """A process for each place, connected by a pipe: rows go one way, events the other.

    opener: opens the session of a worker; depth: rows that each may hold
    """

    def __init__(self, opener: Opener, places: int, depth: int = 1) -> None:
        self.opener, self.places, self.depth = opener, places, depth
        self.window = places * max(AHEAD, 2 * depth)
        self.context = multiprocessing.get_context("spawn")
        self.running: dict[int, tuple[SpawnProcess, Connection]] = {}

    def start(self, worker: int, place: int, inbox: Inbox) -> None:
        ours, theirs = self.context.Pipe()
        state = Worker(worker, self.opener, Place(place, self.places))
        process = self.context.Process(target=serve, args=(theirs, state), daemon=True)
        with ignored_interrupt():
            process.start()
        theirs.close()
        self.running[worker] = process, ours
        threading.Thread(target=listen, args=(worker, process, ours, inbox), daemon=True).start()

    def send(self, worker: int, task: Task) -> None:
        # A process that has ended is reported by its thread.
        with suppress(OSError):
            self.running[worker][1].send(task)

    def close(self) -> None:
        processes = [process for process, _ in self.running.values()]
        for process in processes:
            process.terminate()
        for process in processes:
            wait([process.sentinel], timeout=CLOSING)
            process.kill()


def listen(worker: int, process: SpawnProcess, connection: Connection, inbox: Inbox) -> None:
    """Put the events of a worker into the inbox until it ends, which is the last one."""
    last: Event | None = None
    with suppress(EOFError, OSError):
        while not isinstance(last := connection.recv(), Lost | Refused):
            inbox.put(last)
    # Only then is the memory of its device free.
    wait([process.sentinel])
    process.join()
    inbox.put(last if isinstance(last, Lost | Refused) else Lost(worker, end_of(process.exitcode)))


def end_of(code: int | None) -> str:
    """How a process ended, in words."""
    if code is not None and code < 0:
        return f"its process ended with signal {-code} ({signal.strsignal(-code)})"
    return f"its process ended with exit code {code}"


@contextmanager
def ignored_interrupt() -> Iterator[None]:
    """Let processes that the block starts ignore Ctrl-C, which is for the driver alone."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def serve(connection: Connection, worker: Worker) -> NoReturn:
    """Open a worker's session in this process, and answer rows until the driver ends, or nothing more can be answered."""
    # Standard output belongs to the driver's records.
    with suppress(OSError):
        os.dup2(2, 1)
    tasks: SimpleQueue[Task | None] = SimpleQueue()
    sending = threading.Lock()

    def send(event: Event) -> None:
        with sending:
            connection.send(event)

    threading.Thread(target=receive, args=(connection, tasks), daemon=True).start()
    opened = worker.open(lambda text: send(Told(worker.number, text)))
    send(opened)
    if isinstance(opened, Ready):
        worker.answer_all(tasks, send)
    # Whatever is left of a failed device cannot be put in order.
    os._exit(1)


def receive(connection: Connection, tasks: SimpleQueue[Task | None]) -> NoReturn:
    """Take rows from the driver, and end this process at once when the driver has ended."""
    with suppress(EOFError, OSError):
        while True:
            tasks.put(connection.recv())
    os._exit(0)

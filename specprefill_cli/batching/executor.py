"""Where rows are answered: the one seam between the loop of a batch and its workers, and the worker that is this process.

Workers are sent rows, and put what becomes of them into the inbox of the loop, in any order and whenever they like, so that
one may hold several rows at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol

from specprefill_cli.batching.rows import Row
from specprefill_cli.errors import SpecprefillError

# Rows read ahead for each row that the workers can hold, so that there is a choice of documents for each worker.
AHEAD = 32


@dataclass(frozen=True)
class Task:
    """A row on its way; `ticket` is its place among the rows that this run asks."""

    ticket: int
    row: Row


@dataclass(frozen=True)
class Line:
    """The next line of the input has arrived; empty: there is none."""

    text: bytes


@dataclass(frozen=True)
class Ready:
    """A worker can be sent rows."""

    worker: int


@dataclass(frozen=True)
class Answered:
    """The record of a row, which may be an error record."""

    worker: int
    ticket: int
    record: dict[str, Any]


@dataclass(frozen=True)
class Told:
    """A worker has something to tell the user."""

    worker: int
    text: str


@dataclass(frozen=True)
class Lost:
    """A worker has ended, or its device has failed; it answers nothing more."""

    worker: int
    reason: str


@dataclass(frozen=True)
class Refused:
    """A worker cannot be opened, for a reason that the user can mend."""

    worker: int
    reason: str
    exit_code: int


@dataclass(frozen=True)
class Failed:
    """A worker that is part of this process can answer nothing more, and nothing can replace it."""

    worker: int
    error: BaseException


Event = Line | Ready | Answered | Told | Lost | Refused | Failed
Inbox = SimpleQueue[Event]
# Asks for the next line of the input, which then comes to the inbox.
Request = Callable[[], None]


class DeviceFailure(SpecprefillError):
    """The device has failed, so that this process can answer nothing more."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the device failed ({reason}), and this process can answer nothing more; run the same command "
            "with --out and --resume to go on in a new one"
        )
        self.reason = f"the device failed ({reason})"


class WorkerLost(SpecprefillError):
    """The workers that were sent a row were all lost before they had answered it."""


@dataclass(frozen=True)
class Place:
    """A worker's number among those that share the machine's cores and GPUs, and how many there are."""

    number: int = 0
    count: int = 1


Tell = Callable[[str], None]
Answerer = Callable[[Row], dict[str, Any]]
# Opens a session where the worker runs, which takes long; what it is told goes to the user. Must be picklable for other
# processes. Raises SpecprefillError where the user can mend what prevents it.
Opener = Callable[[Place, Tell], Answerer]


class Executor(Protocol):
    """Workers that answer rows.

    places: how many workers there are at a time; depth: rows that each may hold; window: rows that may be read ahead of the
    oldest one that is not written
    """

    places: int
    depth: int
    window: int

    def start(self, worker: int, place: int, inbox: Inbox) -> None:
        """Start a worker at a place, which was never used or whose worker was lost; its events go to the inbox.

        worker: a number that no other worker of this run has
        """

    def send(self, worker: int, task: Task) -> None:
        """Give a worker a row; nothing happens where the worker is lost, which an event tells."""

    def close(self) -> None:
        """End all workers, whatever they are doing."""


class InProcess:
    """One worker, which is this process: it answers a row as it is sent.

    record: returns a row's record, which may be an error record
    """

    places = depth = window = 1

    def __init__(self, record: Callable[[Row], dict[str, Any]]) -> None:
        self.record = record

    def start(self, worker: int, place: int, inbox: Inbox) -> None:
        self.inbox = inbox
        inbox.put(Ready(worker))

    def send(self, worker: int, task: Task) -> None:
        self.inbox.put(Answered(worker, task.ticket, self.record(task.row)))

    def close(self) -> None:
        """Nothing to end."""

"""Sends rows to workers, replaces those that are lost, and asks their rows again."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any

from specprefill_cli.batching.executor import (
    Answered,
    Event,
    Executor,
    Failed,
    Inbox,
    Line,
    Lost,
    Ready,
    Refused,
    Task,
    Tell,
    Told,
    WorkerLost,
)
from specprefill_cli.batching.routing import ELSEWHERE, Router
from specprefill_cli.errors import SpecprefillError

# How often a row is asked whose workers are lost, and how often in a row a worker is started that answers nothing.
TRIES = 3

Outcome = dict[str, Any] | WorkerLost


@dataclass
class WorkerState:
    """A worker: its place, the rows that it holds by their tickets, and whether it can be sent more."""

    place: int
    tasks: dict[int, Task] = field(default_factory=dict)
    ready: bool = False


class Dispatcher:
    """Keeps the workers of an executor busy.

    A row whose worker was lost is asked again behind the others and alone, so that only the row which is to blame for a loss is
    asked `TRIES` times in vain; it then has an error. A place whose workers are lost `TRIES` times without an answer in
    between is given up.

    tell: shows the user a line
    """

    def __init__(self, executor: Executor, inbox: Inbox, tell: Tell) -> None:
        self.executor, self.inbox, self.tell = executor, inbox, tell
        self.router = Router()
        self.waiting: list[Task] = []
        self.workers: dict[int, WorkerState] = {}
        self.losses: dict[int, int] = {}
        self.fruitless = dict.fromkeys(range(executor.places), 0)
        self.opened: set[int] = set()
        self.end: SpecprefillError | None = None
        self.numbers = count()
        for place in self.fruitless:
            self.start(place)

    def start(self, place: int) -> None:
        """Start a worker at a place."""
        number = next(self.numbers)
        self.workers[number] = WorkerState(place)
        self.executor.start(number, place, self.inbox)

    def add(self, task: Task) -> None:
        """Take a row that is to be answered. Raises SpecprefillError where no worker is left."""
        if self.end is not None:
            raise self.end
        self.waiting.append(task)

    def assign(self) -> None:
        """Send rows to the workers that can hold more, one to each in turn, the idle ones first."""
        sent = True
        while sent:
            sent = False
            for number, worker in sorted(self.workers.items(), key=lambda item: len(item[1].tasks)):
                if worker.ready and (task := self.next_task(number, worker)) is not None:
                    self.waiting.remove(task)
                    worker.tasks[task.ticket] = task
                    self.router.sent(number, task.row.documents)
                    self.executor.send(number, task)
                    sent = True

    def next_task(self, number: int, worker: WorkerState) -> Task | None:
        """The row that a worker is sent next, if any: rows that were lost alone, others about what it has first."""
        if not self.waiting:
            return None
        if not worker.tasks:
            return self.router.choose(number, self.waiting)
        if len(worker.tasks) >= self.executor.depth or any(ticket in self.losses for ticket in worker.tasks):
            return None
        fresh = [task for task in self.waiting if task.ticket not in self.losses]
        task = self.router.choose(number, fresh) if fresh else None
        # A busy worker takes no row away from the one that has its documents.
        return task if task and self.router.suits(number, task.row.documents) < ELSEWHERE else None

    def handle(self, event: Event) -> dict[int, Outcome]:
        """What an event of a worker decides: the outcome of rows, by their tickets.

        Raises SpecprefillError where no worker is left for the rows that wait, or where one cannot be opened at first, and
        the error of a worker that is part of this process.
        """
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, Told):
            self.tell(event.text)
        worker = self.workers.get(event.worker) if not isinstance(event, Line) else None
        if worker is None:
            return {}
        if isinstance(event, Ready):
            worker.ready = True
            self.opened.add(worker.place)
        elif isinstance(event, Answered):
            del worker.tasks[event.ticket]
            self.losses.pop(event.ticket, None)
            self.fruitless[worker.place] = 0
            return {event.ticket: event.record}
        elif isinstance(event, Refused) and worker.place not in self.opened:
            raise refusal(event)
        elif isinstance(event, Lost | Refused):
            return self.lose(event.worker, event.reason)
        return {}

    def lose(self, number: int, reason: str) -> dict[int, Outcome]:
        """Replace a lost worker, and take back its rows; those that were asked too often have an error."""
        worker = self.workers.pop(number)
        self.router.forget(number)
        failed: dict[int, Outcome] = {}
        for ticket, task in worker.tasks.items():
            self.losses[ticket] = self.losses.get(ticket, 0) + 1
            if self.losses[ticket] < TRIES:
                self.waiting.append(task)
            else:
                failed[ticket] = WorkerLost(f"asked {TRIES} times, and each time the worker was lost (last: {reason})")
        self.fruitless[worker.place] += 1
        held = ", ".join(str(task.row.identifier) for task in worker.tasks.values())
        lost = f"worker {worker.place + 1} was lost{f' with row {held}' if held else ''}: {reason}"
        if self.fruitless[worker.place] < TRIES:
            self.tell(f"{lost}; it is started again")
            self.start(worker.place)
        elif self.workers:
            self.tell(f"{lost}; it answered nothing {TRIES} times in a row and is given up")
        else:
            self.end = SpecprefillError(
                f"{lost}, {TRIES} times in a row without an answer; mend that, and run the same command with --out and "
                "--resume to go on with the rows that are not answered"
            )
            # A last row that ended every worker has its error, and nothing is left to do.
            if self.waiting or not failed:
                raise self.end
        return failed


def refusal(event: Refused) -> SpecprefillError:
    """The error of a worker that cannot be opened, with its exit code."""
    error = SpecprefillError(event.reason)
    error.exit_code = event.exit_code
    return error

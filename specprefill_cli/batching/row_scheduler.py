"""Rows of a batch that are answered several at a time, in this process or in a worker's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import torch

from specprefill_cli.answering.session import Session
from specprefill_cli.batching.admission import automatic_concurrency
from specprefill_cli.batching.answerer import RowQuestion, SessionAnswerer
from specprefill_cli.batching.executor import AHEAD, Answered, Event, Failed, Inbox, Ready, Task
from specprefill_cli.batching.loop import record_of
from specprefill_cli.batching.scheduler import Scheduler
from specprefill_cli.batching.tickets import Ticket

# Rows in hand for each one that runs, so that the next one is there when another ends.
IN_HAND = 2
# Seconds that the end of a batch waits for the pass in hand.
CLOSING = 3.0


class RowScheduler:
    """Answers rows with a scheduler, which the calling thread drives; session: the answerer's own."""

    def __init__(self, answerer: SessionAnswerer, session: Session) -> None:
        self.answerer = answerer
        self.scheduler = Scheduler(session, concurrency=answerer.concurrency)
        self.asked: dict[Ticket, tuple[Task, RowQuestion]] = {}
        self.again: list[Task] = []
        self.done: list[tuple[Task, dict[str, Any]]] = []

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.asked or self.again or self.done)

    def add(self, task: Task) -> None:
        """Take a row. Raises DeviceFailure where the device has failed."""

        def submit(_row: object) -> dict[str, Any]:
            question = self.answerer.question(task.row)
            ticket = self.scheduler.submit(question.collection, task.row.question, question.settings)
            self.asked[ticket] = task, question
            return {}

        record = record_of(task.row, submit)
        if "error" in record:
            self.done.append((task, record))

    def step(self) -> list[tuple[Task, dict[str, Any]]]:
        """Go on with the rows; the records of those that are done. Raises DeviceFailure where the device has failed."""
        for event in self.scheduler.step():
            if not event.last:
                continue
            task, question = self.asked.pop(event.ticket)
            if isinstance(event.error, torch.OutOfMemoryError):
                self.again.append(task)
                continue

            def record(_row: object, event: Any = event, question: RowQuestion = question) -> dict[str, Any]:
                if event.error is not None:
                    raise event.error
                return question.record(event.answer)

            self.done.append((task, record_of(task.row, record)))
        if self.again and not self.scheduler.active:
            # Alone, and in shorter passes where that is not enough.
            task = self.again.pop(0)
            self.done.append((task, record_of(task.row, self.answerer)))
        done, self.done = self.done, []
        return done

    def close(self) -> None:
        """Abandon the rows in hand."""
        for ticket in self.asked:
            self.scheduler.cancel(ticket)


def drive(
    rows: RowScheduler,
    tasks: SimpleQueue[Task | None],
    done: Callable[[Task, dict[str, Any]], None],
    stop: threading.Event | None = None,
) -> None:
    """Answer the rows that come, until there is None, or after the pass in hand once `stop` is set.

    Raises DeviceFailure where the device has failed.
    """
    try:
        while stop is None or not stop.is_set():
            # Taking a row reads its documents, which holds up those that run: no more rows than have a place.
            while rows.idle or (rows.scheduler.free and not tasks.empty()):
                task = tasks.get()
                if task is None:
                    return
                rows.add(task)
            for task, record in rows.step():
                done(task, record)
    finally:
        rows.close()


class InThread:
    """One worker, which is a thread of this process: it answers several rows at a time.

    A thread, because the main one waits for lines of the input, and for Ctrl-C.
    """

    places = 1

    def __init__(self, answerer: SessionAnswerer, session: Session) -> None:
        self.answerer, self.session = answerer, session
        concurrency = answerer.concurrency or automatic_concurrency(session.pair)
        self.depth = IN_HAND * concurrency
        self.window = max(AHEAD, IN_HAND * self.depth)
        self.tasks: SimpleQueue[Task | None] = SimpleQueue()
        self.stop = threading.Event()
        self.thread: threading.Thread | None = None

    def start(self, worker: int, place: int, inbox: Inbox) -> None:
        self.thread = threading.Thread(target=self.work, args=(worker, inbox), name="rows", daemon=True)
        self.thread.start()
        inbox.put(Ready(worker))

    def work(self, worker: int, inbox: Inbox) -> None:
        """Answer rows to the end."""

        def done(task: Task, record: dict[str, Any]) -> None:
            event: Event = Answered(worker, task.ticket, record)
            inbox.put(event)

        try:
            drive(RowScheduler(self.answerer, self.session), self.tasks, done, self.stop)
        except BaseException as error:
            inbox.put(Failed(worker, error))

    def send(self, worker: int, task: Task) -> None:
        self.tasks.put(task)

    def close(self) -> None:
        self.stop.set()
        # Wakes a thread that waits for rows.
        self.tasks.put(None)
        if self.thread is not None:
            self.thread.join(CLOSING)

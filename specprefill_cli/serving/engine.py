"""The engine: one thread that owns the session and does what is asked of it, several questions at a time.

`submit` and `cancel` are all that the rest of the server calls; what comes of a job is delivered as it happens.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from specprefill_cli.batching.loop import is_device_failure
from specprefill_cli.batching.out_of_memory import free_memory, with_short_passes
from specprefill_cli.serving.messages import LAST, Failed, Finished, Payload, Piece, Prefilled, Result

if TYPE_CHECKING:
    from specprefill_cli.answering.session import Session
    from specprefill_cli.answering.stream import AnswerStream
    from specprefill_cli.batching.scheduler import Scheduler
    from specprefill_cli.batching.tickets import Ticket as Scheduled
    from specprefill_cli.documents.collection import Collection
    from specprefill_cli.settings import Settings


@dataclass(frozen=True, kw_only=True)
class AskJob:
    """One question. session: as the asker wants it, a variant of the engine's."""

    session: Session
    collection: Collection
    question: str
    settings: Settings
    identifier: str = ""
    with_cells: bool = False

    def consume(self, deliver: Callable[[Payload], None], stream: AnswerStream, pieces: Iterator[str]) -> None:
        """Deliver an answer as it is decoded; one that was interrupted is complete up to there."""
        from specprefill_cli.answering.cells import stream_cells

        deliver(Prefilled())
        for text in pieces:
            deliver(Piece(text))
        cells = stream_cells(stream) if self.with_cells else None
        deliver(Finished(answer=stream.result(), cells=cells))


@dataclass(frozen=True)
class CallJob:
    """A function that needs the models; it runs to its end between two passes of the questions."""

    function: Callable[[], Any]

    def payload(self) -> Payload:
        """What comes of it."""
        try:
            return Result(self.function())
        except Exception as error:
            return Failed(error)


Job = AskJob | CallJob


@dataclass(eq=False, kw_only=True)
class Ticket:
    """A submitted job. deliver: takes its payloads, on the engine's thread; it must not wait.

    submitted, started: on the clock of `time.perf_counter`; started is None while the job waits
    delivered: whether it has had a payload; alone: whether it runs with no other, the second time it is tried
    """

    number: int
    job: Job
    deliver: Callable[[Payload], None]
    submitted: float
    started: float | None = None
    cancelled: bool = False
    delivered: bool = False
    alone: bool = False


@dataclass(frozen=True)
class Event:
    """Something that happened to a ticket."""

    ticket: Ticket
    payload: Payload


class QueueFull(Exception):
    """More jobs wait than may, or the engine closes."""


class Cancelled(Exception):
    """What a job fails with that was cancelled before it had a result."""


@dataclass
class Engine:
    """Begins jobs in the order in which they came; each ticket gets exactly one last payload.

    scheduler: answers questions, no others than the engine's; observe: told of every event, for metrics
    waiting: not begun; running: begun; asked: those that the scheduler has, by its own tickets
    last_active: on the clock of `time.monotonic`
    """

    scheduler: Scheduler
    observe: Callable[[Event], None] = lambda _event: None
    waiting: deque[Ticket] = field(default_factory=deque)
    running: set[Ticket] = field(default_factory=set)
    asked: dict[Scheduled, Ticket] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    last_active: float = field(default_factory=time.monotonic)
    closing: bool = False

    def submit(self, job: Job, deliver: Callable[[Payload], None], limit: int | None = None) -> Ticket:
        """Add a job. limit: jobs that may wait already; raises QueueFull beyond it, unless nothing runs. From any thread."""
        with self.changed:
            if self.closing or (limit is not None and self.busy and self.queued >= limit):
                raise QueueFull
            ticket = Ticket(number=next(self.numbers), job=job, deliver=deliver, submitted=time.perf_counter())
            self.waiting.append(ticket)
            self.changed.notify()
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Drop a job that waits, or interrupt one that runs after the pass in hand. From any thread."""
        with self.changed:
            ticket.cancelled = True
            if ticket not in self.waiting:
                return
            self.waiting.remove(ticket)
        ticket.deliver(Failed(Cancelled()))

    def step(self) -> None:
        """Begin what can begin, and run a pass of the questions in hand; wait while there is nothing to do."""
        with self.changed:
            while not (self.waiting or self.asked or self.closing):
                self.changed.wait()
        self.interrupt_cancelled()
        while (ticket := self.next_job()) is not None:
            self.begin(ticket)
            if isinstance(ticket.job, CallJob):
                # Answers go on between two of them.
                break
        self.scheduler.admit()
        for scheduled, ticket in self.asked.items():
            if ticket.started is None and scheduled not in self.scheduler.queue:
                ticket.started = time.perf_counter()
        for event in self.scheduler.step():
            if event.ticket in self.asked:
                assert event.error is not None, "answers are consumed where they run"
                self.fail(event.ticket, event.error)
        self.last_active = time.monotonic()

    def next_job(self) -> Ticket | None:
        """The oldest job that waits, where it can begin now."""
        with self.changed:
            if not self.waiting or not self.can_begin(self.waiting[0]):
                return None
            self.running.add(self.waiting[0])
            return self.waiting.popleft()

    def can_begin(self, ticket: Ticket) -> bool:
        """Whether a job need not wait: a question for others to end, a call for an answer that has the ranks' models."""
        if ticket.alone or any(running.alone for running in self.running):
            return self.scheduler.idle
        if isinstance(ticket.job, AskJob):
            return self.scheduler.free > 0
        return self.scheduler.packs or self.scheduler.idle

    def begin(self, ticket: Ticket) -> None:
        """Give a question to the scheduler; do anything else at once."""
        job = ticket.job
        if isinstance(job, AskJob):
            scheduled = self.scheduler.submit(
                job.collection,
                job.question,
                with_short_passes(job.settings) if ticket.alone else job.settings,
                job.identifier,
                session=job.session,
                consume=partial(job.consume, partial(self.tell, ticket)),
            )
            self.asked[scheduled] = ticket
        else:
            ticket.started = time.perf_counter()
            self.tell(ticket, job.payload())

    def fail(self, scheduled: Scheduled, error: Exception) -> None:
        """End a question; one that lacked memory beside others is first tried again, alone and in short passes."""
        ticket = self.asked[scheduled]
        if not isinstance(error, torch.OutOfMemoryError) or ticket.delivered or ticket.alone:
            self.tell(ticket, Failed(error))
            return
        assert isinstance(ticket.job, AskJob)
        free_memory(ticket.job.session.cache, self.scheduler.session.cache)
        del self.asked[scheduled]
        ticket.alone, ticket.started = True, None
        with self.changed:
            self.running.discard(ticket)
            self.waiting.appendleft(ticket)

    def interrupt_cancelled(self) -> None:
        """End the questions that nobody waits for any more, so that others can take their places."""
        for scheduled, ticket in list(self.asked.items()):
            if ticket.cancelled and not scheduled.interrupted and not self.scheduler.interrupt(scheduled):
                self.tell(ticket, Failed(Cancelled()))

    def tell(self, ticket: Ticket, payload: Payload) -> None:
        """Deliver what happened to a job; a failure that all further work would share ends everything."""
        if isinstance(payload, LAST):
            self.running.discard(ticket)
            self.asked = {scheduled: asker for scheduled, asker in self.asked.items() if asker is not ticket}
        ticket.delivered = True
        self.observe(Event(ticket, payload))
        ticket.deliver(payload)
        if isinstance(payload, Failed) and is_device_failure(payload.error):
            self.give_up(payload)

    def run(self) -> None:
        """Work until `close`; the engine's thread."""
        while not self.closing or self.busy:
            self.step()

    def give_up(self, failure: Failed) -> None:
        """End after a failure that all further work would share: this process can answer nothing more."""
        for scheduled in self.asked:
            self.scheduler.cancel(scheduled)
        with self.changed:
            self.closing = True
            abandoned = [*self.asked.values(), *self.waiting]
            self.waiting.clear()
        self.asked = {}
        self.running.clear()
        for ticket in abandoned:
            ticket.deliver(failure)

    def close(self) -> None:
        """Let `run` return once everything is done."""
        with self.changed:
            self.closing = True
            self.changed.notify()

    @property
    def busy(self) -> bool:
        """Whether a job runs or waits."""
        return bool(self.running or self.waiting)

    @property
    def queued(self) -> int:
        """Jobs that wait, those among them for which the scheduler finds no memory."""
        return len(self.waiting) + self.scheduler.pending

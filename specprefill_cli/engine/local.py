"""The engine of this process: a thread that owns the models prefills a question at a time, and packs decoding in between."""

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import torch

from specprefill_cli.answering.session import Session
from specprefill_cli.engine.question import Ticket, run_passes
from specprefill_cli.engine.request import (
    LAST,
    Cancelled,
    Done,
    Engine,
    Event,
    EventCallback,
    Failed,
    QueueFull,
    ReadDocuments,
    Request,
    Started,
    is_device_failure,
)
from specprefill_cli.models.machine.memory_plan import kv_bytes
from specprefill_cli.models.running.passes import before_each_pass
from specprefill_cli.settings import AUTO

# Questions that run at once by default: on a CPU, enough to amortise the fixed cost of a pass; on a GPU, memory is the limit.
MOST_ON_CPU, MOST_ON_GPU = 16, 64
# Threads that read documents and tokenise prompts; seconds that `close` waits for the current pass.
PREPARING, CLOSING = 4, 3.0
# A server's prefill pauses for a request whose documents are so many times shorter.
FAR_SHORTER = 8


@dataclass(eq=False)
class LocalEngine(Engine):
    """Begins requests in order, and delivers a single last event for each: in a thread that calls `run`, or in `ask`.

    concurrency: questions that run at once; None: the default of the device
    independent: whether answers and modes must not depend on earlier questions, as clients of a server expect
    read: reads documents by name; None: `read_collection`; thread: calls `run`, once it is started
    """

    session: Session
    concurrency: int | None = None
    independent: bool = False
    read: ReadDocuments | None = None
    waiting: deque[Ticket] = field(default_factory=deque, init=False)
    running: list[Ticket] = field(default_factory=list, init=False)
    prefilling: list[Ticket] = field(default_factory=list, init=False)
    changed: threading.Condition = field(default_factory=threading.Condition, init=False)
    closing: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        pair = self.session.pair
        most = MOST_ON_GPU if all(device.type == "cuda" for device in pair.devices) else MOST_ON_CPU
        # Other ranks get a single pass at a time.
        self.divided = pair.ranks.size > 1
        self.max_answering = 1 if self.divided else self.concurrency or most
        # Requests worth having in flight: while some run, the next are read and tokenised.
        self.capacity = 2 * self.max_answering
        # In bytes, for the running answers' KV and the largest pass. A question that runs alone may exceed it.
        self.memory_limit = kv_bytes(pair, self.session.settings.memory_cache) or kv_bytes(pair, AUTO)
        self.preparing = ThreadPoolExecutor(PREPARING, "prepare")
        self.thread = threading.Thread(target=self.run, name="engine", daemon=True)

    @property
    def busy(self) -> bool:
        return bool(self.running or self.waiting or self.prefilling)

    def submit(self, request: Request, on_event: EventCallback, limit: int | None = None) -> Ticket:
        """Add a request, from any thread. Raises QueueFull if `limit` requests wait already, unless the engine is idle."""
        with self.changed:
            if self.closing or (limit is not None and self.busy and len(self.waiting) >= limit):
                raise QueueFull
            ticket = Ticket(request, on_event)
            self.waiting.append(ticket)
            self.prepare(ticket)
        return ticket

    def ask(self, request: Request) -> Iterator[Event]:
        """Yield the events of a request, running its passes here; Ctrl-C ends the answer. Raises the request's error."""
        events: deque[Event] = deque()
        ticket, event = self.submit(request, events.append), None
        while not isinstance(event, Done):
            try:
                while not events:
                    self.step()
            except KeyboardInterrupt:
                if ticket not in self.running:
                    raise
                ticket.cancelled = True
                continue
            event = events.popleft()
            if isinstance(event, Failed):
                raise event.error
            yield event

    def cancel(self, ticket: Ticket) -> None:
        """Drop a waiting request; end a running one before its next pass, with its text so far. From any thread."""
        with self.changed:
            ticket.cancelled = True
            if ticket not in self.waiting:
                return
            self.waiting.remove(ticket)
        ticket.on_event(Failed(Cancelled()))

    def prepare(self, ticket: Ticket) -> None:
        ticket.encoded = self.preparing.submit(ticket.encode, self.session, self.read, self.independent)
        ticket.encoded.add_done_callback(self.wake)

    def wake(self, _encoded: object = None) -> None:
        with self.changed:
            self.changed.notify_all()

    def step(self) -> None:
        """Admit and prefill the oldest request that fits, and run a pass for all running answers; wait if there is no work."""
        with self.changed:
            self.changed.wait_for(lambda: self.running or self.oldest_ready() or (self.closing and not self.waiting))
        self.admit()
        self.decode()

    def oldest_ready(self) -> Ticket | None:
        """The oldest waiting request whose preparation ended, with success or not; during a prefill, only a far shorter one."""
        shorter_than = self.prefilling[-1].characters / FAR_SHORTER if self.prefilling else float("inf")
        ready = (ticket for ticket in self.waiting if ticket.encoded.done() and ticket.characters < shorter_than)
        return next(ready, None)

    def admit(self) -> None:
        """Begin the oldest tokenised request if it fits beside the running answers and the prefills that pause."""
        with self.changed:
            ticket = self.oldest_ready()
        if ticket is None or len(self.running) >= self.max_answering:
            return
        try:
            fits = ticket.fits_beside([*self.running, *self.prefilling], self.memory_limit)
        except Exception as error:
            return self.tell(ticket, Failed(error))
        with self.changed:
            if ticket.cancelled or not fits:
                return
            self.waiting.remove(ticket)
            self.prefilling.append(ticket)
        self.begin(ticket)

    def begin(self, ticket: Ticket) -> None:
        try:
            # Ranks cannot pause in the middle of a collective operation.
            with before_each_pass(None if self.divided else lambda: self.pause(ticket)):
                if ticket.prepared is None:
                    return self.tell(ticket, Done(ticket.retrieve()))
                ticket.prefill()
                self.running.append(ticket)
                self.tell(ticket, Started())
                self.advance(ticket)
        except Exception as error:
            self.fail(ticket, error)
        finally:
            self.prefilling.pop()

    def pause(self, ticket: Ticket) -> None:
        """Between passes of a prefill, begin a far shorter request, and decode. Raises Cancelled if the prefill's was."""
        if ticket.cancelled:
            raise Cancelled
        if self.independent:
            # A warm-up before the shorter request must not pause in turn.
            with before_each_pass(None):
                self.admit()
        self.decode()

    def decode(self) -> None:
        """Continue every running answer by a pass."""
        for ticket, outcome in run_passes(self.running, len(self.running) + bool(self.prefilling)):
            self.advance(ticket, outcome)

    def advance(self, ticket: Ticket, outcome: torch.Tensor | BaseException | None = None) -> None:
        """Continue an answer up to its next pass. outcome: the last pass's logits, or the error that it raised."""
        try:
            # A proposer may prefill here; do not decode other answers between its passes.
            with before_each_pass(None):
                for event in ticket.advance(outcome):
                    self.tell(ticket, event)
        except Exception as error:
            self.fail(ticket, error)

    def fail(self, ticket: Ticket, error: Exception) -> None:
        """End a request with an error, or retry it once, alone and in short passes, if it lacked memory before any text."""
        has_ended = ticket.delivered or ticket.cancelled or ticket.retried
        # Other ranks keep what this one would free.
        if not isinstance(error, torch.OutOfMemoryError) or has_ended or self.divided:
            return self.tell(ticket, Failed(error))
        self.drop(ticket)
        ticket.restart(error)
        # Queue it before freeing memory: if that fails, this request ends with the others.
        with self.changed:
            self.waiting.appendleft(ticket)
        # Free the KV caches of earlier documents, and the memory that torch has reserved.
        if self.session.cache is not None:
            self.session.cache.draft.prefixes.evict(0)
            self.session.cache.target.prefixes.evict(0)
        torch.cuda.empty_cache()
        self.prepare(ticket)

    def drop(self, ticket: Ticket) -> None:
        with self.changed:
            for tickets in (self.running, self.waiting):
                # Check first: the message of `remove`'s error would contain the whole session.
                if ticket in tickets:
                    tickets.remove(ticket)
        # Free what a running answer holds.
        ticket.stream = ticket.steps = ticket.next_pass = ticket.prepared = None

    def tell(self, ticket: Ticket, event: Event) -> None:
        """Deliver an event of a request; a device failure ends all requests."""
        if isinstance(event, LAST):
            self.drop(ticket)
        ticket.on_event(event)
        if isinstance(event, Failed) and is_device_failure(event.error):
            self.abort_all(event)

    def run(self) -> None:
        """Work until `close`; the engine's thread runs this. An error outside of any request ends all requests."""
        try:
            while not self.closing or self.busy:
                self.step()
        except BaseException as error:
            self.abort_all(Failed(error))
            raise
        finally:
            self.preparing.shutdown(wait=False, cancel_futures=True)

    def abort_all(self, failure: Failed) -> None:
        """End all requests and close: after this failure, the process can answer nothing more."""
        with self.changed:
            self.closing = True
            abandoned = [*self.running, *self.waiting]
        for ticket in abandoned:
            self.drop(ticket)
            ticket.on_event(failure)

    def close(self) -> None:
        """Let `run` return once all requests are done; wait briefly for `thread`."""
        self.closing = True
        self.wake()
        if self.thread.is_alive():
            self.thread.join(CLOSING)

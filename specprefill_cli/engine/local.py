"""The engine of this process: a single thread owns the models and works through a queue.

It prefills a single question at a time, and packs the next passes of all running answers into a single forward pass.
Decoding continues between the passes of a prefill.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from specprefill_cli.answering.session import Session
from specprefill_cli.documents.collect import read_collection
from specprefill_cli.engine.question import Ticket, largest_pass_bytes
from specprefill_cli.engine.request import (
    ANSWER,
    LAST,
    Cancelled,
    Done,
    Event,
    EventCallback,
    Failed,
    Piece,
    QueueFull,
    ReadDocuments,
    Request,
    Started,
    is_device_failure,
)
from specprefill_cli.models.machine.memory_plan import answers_bytes
from specprefill_cli.models.running.adapter import run_together
from specprefill_cli.models.running.passes import before_each_pass

# Questions that `--concurrency auto` runs at once. On a CPU, 16 sequences amortise the fixed cost of a pass well enough; on
# a GPU, memory is usually the limit.
MOST_ON_CPU, MOST_ON_GPU = 16, 64
# Threads that read documents and tokenise prompts, besides the engine's thread.
PREPARING = 4
# Seconds that `close` waits for the current pass.
CLOSING = 3.0


@dataclass(eq=False)
class LocalEngine:
    """Begins requests in order, and delivers a single last event for each.

        engine = LocalEngine(session)
        ticket = engine.submit(Request(documents=..., question=..., settings=...), on_event)
        engine.run()             # in a thread, until `close`; or engine.step() while engine.busy
        engine.cancel(ticket)

    concurrency: questions that run at once; None: the default of the device
    independent: whether answers and modes must not depend on earlier questions, as clients of a server expect
    read: reads documents by name; observe: called with every event, for metrics
    running: answers that decode; prefilling: the request in prefill; last_active: on the clock of `time.monotonic`
    """

    session: Session
    concurrency: int | None = None
    independent: bool = False
    read: ReadDocuments = read_collection
    observe: Callable[[Ticket, Event], None] = lambda _ticket, _event: None
    waiting: deque[Ticket] = field(default_factory=deque, init=False)
    running: list[Ticket] = field(default_factory=list, init=False)
    prefilling: Ticket | None = field(default=None, init=False)
    changed: threading.Condition = field(default_factory=threading.Condition, init=False)
    last_active: float = field(default_factory=time.monotonic, init=False)
    closing: bool = field(default=False, init=False)
    thread: threading.Thread | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        pair = self.session.pair
        # Other ranks get a single pass at a time.
        self.divided = pair.ranks.size > 1
        default_concurrency = MOST_ON_GPU if all(device.type == "cuda" for device in pair.devices) else MOST_ON_CPU
        self.max_answering = 1 if self.divided else self.concurrency or default_concurrency
        # In bytes, for the running answers' KV and the largest pass. A question that runs alone may exceed it.
        self.memory_limit = answers_bytes(pair, self.session.settings.memory_cache)
        self.preparing = ThreadPoolExecutor(PREPARING, "prepare")

    @property
    def capacity(self) -> int:
        """Requests worth having in flight: while some run, the next are read and tokenised."""
        return 2 * self.max_answering

    @property
    def busy(self) -> bool:
        """Whether a request runs or waits."""
        return bool(self.running or self.waiting or self.prefilling)

    def submit(self, request: Request, on_event: EventCallback, limit: int | None = None) -> Ticket:
        """Add a request, from any thread; an error in it is delivered as an event.

        limit: most requests that may wait already; raises QueueFull beyond it, unless the engine is idle
        """
        with self.changed:
            if self.closing or (limit is not None and self.busy and len(self.waiting) >= limit):
                raise QueueFull
            if not self.busy:
                self.last_active = time.monotonic()
            submitted = time.perf_counter()
            ticket = Ticket(request=request, on_event=on_event, submitted=submitted, session=self.session)
            self.waiting.append(ticket)
            self.prepare(ticket)
        return ticket

    def ask(self, request: Request) -> Iterator[Event]:
        """Yield the events of a request; its passes run in the calling thread.

        Ctrl-C ends an answer and keeps its text so far. Raises the error that the request fails with.
        """
        events: deque[Event] = deque()
        ticket = self.submit(request, events.append)
        while True:
            while events:
                event = events.popleft()
                if isinstance(event, Failed):
                    raise event.error
                yield event
                if isinstance(event, Done):
                    return
            try:
                self.step()
            except KeyboardInterrupt:
                if ticket not in self.running:
                    raise
                ticket.cancelled = True

    def cancel(self, ticket: Ticket) -> None:
        """Drop a waiting request; end a running request after the current pass, with its text so far. From any thread."""
        with self.changed:
            ticket.cancelled = True
            if ticket not in self.waiting:
                return
            self.waiting.remove(ticket)
        ticket.on_event(Failed(Cancelled()))

    def prepare(self, ticket: Ticket) -> None:
        """Read and tokenise in another thread, then wake the engine's thread."""
        # A second attempt starts from the engine's session again.
        ticket.session = self.session
        ticket.encoded = self.preparing.submit(ticket.encode, self.read, self.independent)
        ticket.encoded.add_done_callback(self.wake)

    def wake(self, _encoded: object) -> None:
        """Wake the engine's thread for a request that is read and tokenised."""
        with self.changed:
            self.changed.notify_all()

    def step(self) -> None:
        """Admit and prefill the oldest request that fits, and run a pass for all running answers; wait if there is no work."""
        with self.changed:
            while not (self.running or any(ticket.is_ready for ticket in self.waiting)):
                if self.closing and not self.waiting:
                    break
                self.changed.wait()
        self.end_cancelled()
        ticket = self.admit()
        if ticket is not None:
            self.begin(ticket)
        self.decode()
        self.last_active = time.monotonic()

    def admit(self) -> Ticket | None:
        """Admit the oldest tokenised request if it fits beside the running answers."""
        with self.changed:
            ticket = next((ticket for ticket in self.waiting if ticket.is_ready), None)
        if ticket is None:
            return None
        # A request that ran out of memory is retried alone.
        if self.running and (self.divided or any(other.retried is not None for other in (ticket, *self.running))):
            return None
        if len(self.running) >= self.max_answering:
            return None
        try:
            if ticket.request.task == ANSWER and ticket.prepared is None:
                ticket.resolve()
        except Exception as error:
            self.tell(ticket, Failed(error))
            return None
        if self.running and ticket.prepared is not None:
            needed_bytes = (
                largest_pass_bytes(ticket.prepared) + ticket.bytes + sum(other.bytes for other in self.running)
            )
            if needed_bytes > self.memory_limit:
                return None
        with self.changed:
            if ticket.cancelled:
                return None
            self.waiting.remove(ticket)
            self.prefilling = ticket
        return ticket

    def begin(self, ticket: Ticket) -> None:
        """Prefill a question, or run the draft's task."""
        try:
            # Ranks cannot pause in the middle of a collective operation.
            with before_each_pass(None if self.divided else partial(self.between_passes, ticket)):
                if ticket.request.task != ANSWER:
                    self.tell(ticket, Done(ticket.run_draft()))
                    return
                ticket.prefill()
                self.running.append(ticket)
                self.tell(ticket, Started())
                self.advance(ticket)
        except Exception as error:
            self.fail(ticket, error)
        finally:
            self.prefilling = None

    def between_passes(self, ticket: Ticket) -> None:
        """Decode the running answers between two passes of a prefill. Raises Cancelled if the prefill was cancelled."""
        if ticket.cancelled:
            raise Cancelled
        self.end_cancelled()
        self.decode()
        self.last_active = time.monotonic()

    def decode(self) -> None:
        """Run the next pass of every running answer, packing the passes of the same model."""
        sharing = len(self.running) + (self.prefilling is not None)
        groups: dict[int, list[Ticket]] = defaultdict(list)
        for ticket in self.running:
            assert ticket.next_pass is not None and ticket.stream is not None  # noqa: PT018
            ticket.stream.speculation.sharing = sharing
            groups[id(ticket.next_pass.model)].append(ticket)
        for group in groups.values():
            # If the device failed in an earlier group, the answers of later groups have ended.
            tickets = [ticket for ticket in group if ticket.next_pass is not None]
            outcomes = run_together([ticket.next_pass for ticket in tickets if ticket.next_pass is not None])
            for ticket, outcome in zip(tickets, outcomes, strict=True):
                # An earlier answer in the group may have ended this answer because the device failed.
                if ticket.next_pass is not None:
                    self.advance(ticket, outcome)

    def advance(self, ticket: Ticket, outcome: Tensor | BaseException | None = None) -> None:
        """Continue an answer up to its next pass. outcome: the last pass's logits, or the error that it raised."""
        try:
            # A proposer may prefill here; do not decode other answers between its passes.
            with before_each_pass(None):
                for event in ticket.advance(outcome):
                    self.tell(ticket, event)
        except Exception as error:
            self.fail(ticket, error)

    def end_cancelled(self) -> None:
        """End the cancelled answers, so that others can take their places."""
        for ticket in [ticket for ticket in self.running if ticket.cancelled]:
            self.advance(ticket, KeyboardInterrupt())

    def fail(self, ticket: Ticket, error: Exception) -> None:
        """End a request with an error, or retry it once, alone and in short passes, if it lacked memory before any text."""
        lacks_memory = isinstance(error, torch.OutOfMemoryError)
        if not lacks_memory or ticket.delivered or ticket.cancelled or ticket.retried is not None:
            self.tell(ticket, Failed(error))
            return
        self.drop(ticket)
        ticket.restart(error)
        # Queue it before freeing memory: if that fails, this request ends with the others.
        with self.changed:
            self.waiting.appendleft(ticket)
        # Free the KV caches of earlier documents, and the memory that torch has reserved.
        if (cache := self.session.cache) is not None:
            cache.draft.prefixes.evict(0)
            cache.target.prefixes.evict(0)
        torch.cuda.empty_cache()
        self.prepare(ticket)

    def drop(self, ticket: Ticket) -> None:
        """Remove a running answer and free what it holds."""
        if ticket in self.running:
            self.running.remove(ticket)
        ticket.drop()

    def tell(self, ticket: Ticket, event: Event) -> None:
        """Deliver an event of a request; a device failure ends all requests."""
        if isinstance(event, LAST):
            self.drop(ticket)
            with self.changed:
                # Check first: the message of `remove`'s error would contain the whole session.
                if ticket in self.waiting:
                    self.waiting.remove(ticket)
        ticket.delivered |= isinstance(event, Piece)
        self.observe(ticket, event)
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
            self.running.clear()
            self.waiting.clear()
        for ticket in abandoned:
            self.drop(ticket)
            ticket.on_event(failure)

    def start(self) -> None:
        """Run the engine in a thread, because the main thread waits for other things, such as Ctrl-C."""
        self.thread = threading.Thread(target=self.run, name="engine", daemon=True)
        self.thread.start()

    def close(self) -> None:
        """Let `run` return once all requests are done; wait briefly for the thread of `start`."""
        with self.changed:
            self.closing = True
            self.changed.notify_all()
        if self.thread is not None:
            self.thread.join(CLOSING)

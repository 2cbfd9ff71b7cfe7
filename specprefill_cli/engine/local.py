"""The engine of this process: one thread that owns the models, one queue, one loop.

It prefills one question at a time, and decodes all running answers together: their next passes are packed into one. Between
two passes of a prefill the answers go on.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any

import torch
from torch import Tensor

from specprefill_cli.answering.cells import stream_cells
from specprefill_cli.answering.dry_run import dry_run
from specprefill_cli.answering.resolve import EncodedQuestion, Prepared, loads_draft
from specprefill_cli.answering.retrieval import retrieve
from specprefill_cli.answering.session import Session
from specprefill_cli.answering.stream import AnswerStream
from specprefill_cli.decoding.adaptive import SpeculationState
from specprefill_cli.decoding.speculation import check_proposer
from specprefill_cli.documents import read_collection
from specprefill_cli.documents.collection import Collection
from specprefill_cli.engine.admission import (
    answer_bytes,
    automatic_concurrency,
    confirmation_bytes,
    largest_pass_bytes,
)
from specprefill_cli.engine.failures import free_memory, is_device_failure, with_short_passes
from specprefill_cli.engine.priority import due
from specprefill_cli.engine.request import (
    ANSWER,
    LAST,
    PASSAGES,
    Cancelled,
    Deliver,
    Done,
    Event,
    Failed,
    Piece,
    Provisional,
    QueueFull,
    Request,
    Started,
)
from specprefill_cli.errors import UsageError, first_line
from specprefill_cli.models.loading import LoadedModel, ModelOutline
from specprefill_cli.models.packed import run_together
from specprefill_cli.models.passes import Pass, before_each_pass
from specprefill_cli.prefill.cache_limit import memory_limit
from specprefill_cli.prefill.calibration import CalibratedPair
from specprefill_cli.record import Record
from specprefill_cli.settings import AUTO, Settings

# Threads that read documents and tokenise prompts, beside the engine's.
PREPARING = 2


@dataclass(eq=False, kw_only=True)
class Ticket:
    """A submitted request.

    submitted, started: on the clock of `time.perf_counter`; started is None while the request waits
    encoded: its documents, read, and its prompt, tokenised; prepared: its settings, resolved
    bytes: of keys and values that it holds, estimated; confirming_bytes: while full prefill confirms its answer
    steps: the answer, which asks for passes; waiting: the pass that it needs next
    delivered: whether a piece of the answer was delivered
    retried: why the first attempt lacked memory; the second runs with no other
    """

    number: int
    request: Request
    deliver: Deliver
    submitted: float
    settings: Settings
    started: float | None = None
    encoded: Future[Encoded] | None = None
    prepared: Prepared | None = None
    bytes: int = 0
    confirming_bytes: int = 0
    stream: AnswerStream | None = None
    steps: Generator[Pass | str | Record, Tensor, None] | None = None
    waiting: Pass | None = None
    cancelled: bool = False
    delivered: bool = False
    retried: str | None = None

    @property
    def is_ready(self) -> bool:
        """Whether its prompt is tokenised, or cannot be."""
        return self.encoded is not None and self.encoded.done()

    @property
    def confirming(self) -> bool:
        """Whether its answer is complete, and full prefill confirms it."""
        return self.stream is not None and self.stream.confirmation is not None


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """What is prepared beside the engine's thread. prompt: None for requests that are not answered."""

    session: Session
    collection: Collection
    prompt: EncodedQuestion | None


@dataclass(eq=False)
class LocalEngine:
    """Begins requests in the order in which they came, and delivers exactly one last event for each.

        engine = LocalEngine(session)
        ticket = engine.submit(Request(documents=..., question=..., settings=...), deliver)
        engine.run()             # in a thread, until `close`; or engine.step() while engine.busy
        engine.cancel(ticket)

    concurrency: questions that run at once; None: as many as pay
    memory_bytes: limit of the running answers' KV and the largest pass; None: that of `--memory-cache`. One question runs
        whatever it needs
    independent: whether answers, and the choice of their mode, do not depend on earlier questions, as clients of a server
        expect
    read: reads documents by name; observe: told of every event, for metrics
    running: answers that are decoded; prefilling: the request in hand; last_active: on the clock of `time.monotonic`
    """

    session: Session
    concurrency: int | None = None
    memory_bytes: int | None = None
    independent: bool = False
    read: Callable[[tuple[str, ...]], Collection] = read_collection
    observe: Callable[[Ticket, Event], None] = lambda _ticket, _event: None
    waiting: deque[Ticket] = field(default_factory=deque, init=False)
    running: list[Ticket] = field(default_factory=list, init=False)
    prefilling: Ticket | None = field(default=None, init=False)
    changed: threading.Condition = field(default_factory=threading.Condition, init=False)
    numbers: Iterator[int] = field(default_factory=itertools.count, init=False)
    last_active: float = field(default_factory=time.monotonic, init=False)
    closing: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        pair = self.session.pair
        # Other ranks are sent one pass after the other.
        self.alone = pair.ranks.size > 1
        self.most = 1 if self.alone else self.concurrency or automatic_concurrency(pair)
        limit = memory_limit(self.session.settings.memory_cache, pair) or memory_limit(AUTO, pair)
        self.limit = limit if self.memory_bytes is None else self.memory_bytes
        self.preparing = ThreadPoolExecutor(PREPARING, "prepare")

    @property
    def capacity(self) -> int:
        """Requests worth having in flight: while some run, the next ones are read and tokenised."""
        return 2 * self.most

    @property
    def busy(self) -> bool:
        """Whether a request runs or waits."""
        return bool(self.running or self.waiting or self.prefilling)

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return len(self.waiting)

    def submit(self, request: Request, deliver: Deliver, limit: int | None = None) -> Ticket:
        """Add a request, from any thread; whatever is wrong with it comes as its event.

        limit: requests that may wait already; raises QueueFull beyond it, unless nothing runs
        """
        with self.changed:
            if self.closing or (limit is not None and self.busy and self.queued >= limit):
                raise QueueFull
            if not self.busy:
                self.last_active = time.monotonic()
            ticket = Ticket(
                number=next(self.numbers),
                request=request,
                deliver=deliver,
                submitted=time.perf_counter(),
                settings=request.settings,
            )
            self.waiting.append(ticket)
            self.prepare(ticket)
        return ticket

    def ask(self, request: Request) -> Iterator[Event]:
        """The events of one request, whose passes run in the calling thread.

        Ctrl-C ends an answer, which is complete up to there. Raises what the request fails with.
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
        """Drop a request that waits; end one that runs after the pass in hand, complete up to there. From any thread."""
        with self.changed:
            ticket.cancelled = True
            if ticket not in self.waiting:
                return
            self.waiting.remove(ticket)
        ticket.deliver(Failed(Cancelled()))

    def prepare(self, ticket: Ticket) -> None:
        """Read and tokenise beside the engine's thread."""
        ticket.encoded = self.preparing.submit(self.encode, ticket)
        ticket.encoded.add_done_callback(lambda _: self.wake())

    def encode(self, ticket: Ticket) -> Encoded:
        """Read the documents and tokenise the prompt; in a thread of its own."""
        request, settings, documents = ticket.request, ticket.settings, ticket.request.documents
        session = self.session if request.session is None else request.session
        if self.independent:
            # What warm-up measured, without what answers showed.
            fresh = SpeculationState(costs=deepcopy(session.speculation.costs))
            session = replace(session, speculation=fresh, cold_choice=True)
        if request.template is not None:
            session = replace(session, template=request.template)
        if ticket.cancelled:
            raise Cancelled
        if isinstance(documents, tuple):
            began = time.perf_counter()
            documents = self.read(documents)
            session = replace(session, startup_seconds=session.startup_seconds + time.perf_counter() - began)
        if request.task != ANSWER:
            return Encoded(session=session, collection=documents, prompt=None)
        if loads_draft(settings) and session.pair.draft is None:
            raise UsageError("this question needs the draft, which was not loaded; start with a --mode that uses it")
        check_proposer(settings, session.pair)
        prompt = session.encode(documents, request.question, settings)
        return Encoded(session=session, collection=documents, prompt=prompt)

    def wake(self) -> None:
        """Let a waiting `step` look again."""
        with self.changed:
            self.changed.notify_all()

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self.running) or any(ticket.is_ready for ticket in self.waiting)

    def step(self) -> None:
        """Begin the oldest request that fits, and run one pass for all running answers; wait while there is nothing to do."""
        with self.changed:
            while not self.has_work and (self.waiting or not self.closing):
                self.changed.wait()
        self.end_cancelled()
        ticket = self.admitted()
        if ticket is not None:
            self.begin(ticket)
        self.decode()
        self.last_active = time.monotonic()

    def admitted(self) -> Ticket | None:
        """Take the oldest request that is tokenised and fits beside those that run."""
        with self.changed:
            ticket = next((ticket for ticket in self.waiting if ticket.is_ready), None)
        if ticket is None or not self.has_place or (self.running and self.needs_all(ticket)):
            return None
        try:
            if ticket.request.task == ANSWER and ticket.prepared is None:
                ticket.prepared = self.resolve(ticket)
        except Exception as error:
            self.tell(ticket, Failed(error))
            return None
        if self.running and ticket.prepared is not None:
            needed = largest_pass_bytes(ticket.prepared) + ticket.bytes + sum(other.bytes for other in self.running)
            if needed > self.limit:
                return None
        with self.changed:
            if ticket.cancelled:
                return None
            self.waiting.remove(ticket)
            self.prefilling = ticket
        return ticket

    @property
    def has_place(self) -> bool:
        """Whether one more question may run. Confirmations take no place, but no more than `capacity` pile up."""
        answering = sum(not ticket.confirming for ticket in self.running)
        return answering < self.most and len(self.running) < self.capacity

    def needs_all(self, ticket: Ticket) -> bool:
        """Whether a request cannot run beside others."""
        return self.alone or any(other.retried is not None for other in (ticket, *self.running))

    def resolve(self, ticket: Ticket) -> Prepared:
        """Resolve the settings of a question. Raises SpecprefillError where it cannot be answered."""
        assert ticket.encoded is not None
        encoded = ticket.encoded.result()
        assert encoded.prompt is not None, "the question is to be answered"
        encoded.session.warm_up(ticket.settings)
        prepared = encoded.session.resolved(encoded.prompt, ticket.settings, ticket.request.identifier)
        ticket.bytes, ticket.confirming_bytes = answer_bytes(prepared), confirmation_bytes(prepared)
        return prepared

    def begin(self, ticket: Ticket) -> None:
        """Prefill a question, or do what else was asked for."""
        ticket.started = time.perf_counter()
        try:
            # Ranks cannot stop in the middle of what they do together.
            with before_each_pass(None if self.alone else partial(self.between_passes, ticket)):
                if ticket.request.task == ANSWER:
                    self.prefill(ticket)
                else:
                    self.tell(ticket, Done(self.without_answer(ticket)))
        except Exception as error:
            self.fail(ticket, error)
        finally:
            self.prefilling = None

    def prefill(self, ticket: Ticket) -> None:
        """Prefill a question, and choose the first token of its answer."""
        assert ticket.encoded is not None and ticket.prepared is not None  # noqa: PT018
        session, prepared = ticket.encoded.result().session, ticket.prepared
        # What the answer needs of it frees its memory with the answer.
        ticket.prepared = None
        prepared.request.clock.resume()
        stream = session.answer(prepared, session.prefill(prepared))
        if not ticket.request.stop_tokens:
            stream.stop_tokens = frozenset()
        if ticket.cancelled:
            raise Cancelled
        ticket.stream, ticket.steps = stream, stream.steps()
        self.running.append(ticket)
        self.tell(ticket, Started())
        self.advance(ticket)

    def without_answer(self, ticket: Ticket) -> Any:
        """The passages or the plan of a question."""
        assert ticket.encoded is not None
        encoded, request = ticket.encoded.result(), ticket.request
        session = replace(encoded.session, pair=self.draft_side)
        if request.task == PASSAGES:
            return retrieve(session, encoded.collection, request.question, ticket.settings, request.top)
        return dry_run(session, encoded.collection, request.question, ticket.settings)

    @cached_property
    def draft_side(self) -> CalibratedPair:
        """The pair without the target's weights, which passages and plans do without."""
        pair = self.session.pair
        target = pair.target
        if not isinstance(target, LoadedModel):
            return pair
        device = next(iter(target.devices)).type
        outline = ModelOutline(name=target.name, config=target.config, tokenizer=target.tokenizer, device=device)
        return replace(pair, target=outline)

    def between_passes(self, ticket: Ticket) -> None:
        """Let the answers go on between two passes of a prefill. Raises Cancelled where nobody waits for that any more."""
        if ticket.cancelled:
            raise Cancelled
        self.end_cancelled()
        self.decode()
        self.last_active = time.monotonic()

    def decode(self) -> None:
        """Run the next pass of every running answer that is due: those of one model together."""
        running = due(self.running, prefilling=self.prefilling is not None)
        sharing = len(running) + (self.prefilling is not None)
        groups: dict[int, list[Ticket]] = defaultdict(list)
        for ticket in running:
            assert ticket.waiting is not None and ticket.stream is not None  # noqa: PT018
            ticket.stream.speculation.costs.sharing = sharing
            groups[id(ticket.waiting.model)].append(ticket)
            if ticket.confirming:
                ticket.bytes = ticket.confirming_bytes
        for group in groups.values():
            # A failed device in an earlier group ends the answers of the later ones.
            tickets = [ticket for ticket in group if ticket.waiting is not None]
            outcomes = run_together([ticket.waiting for ticket in tickets if ticket.waiting is not None])
            for ticket, outcome in zip(tickets, outcomes, strict=True):
                # An answer before it may have found that the device has failed.
                if ticket.waiting is not None:
                    self.advance(ticket, outcome)

    def advance(self, ticket: Ticket, outcome: Tensor | BaseException | None = None) -> None:
        """Let an answer go on up to its next pass. outcome: of the last pass: its logits, or the error that it raised."""
        steps, stream = ticket.steps, ticket.stream
        assert steps is not None and stream is not None  # noqa: PT018
        try:
            # A proposer may prefill first, and other answers must not go on inside that.
            with before_each_pass(None):
                if isinstance(outcome, BaseException):
                    item = steps.throw(outcome)
                else:
                    item = next(steps) if outcome is None else steps.send(outcome)
                while not isinstance(item, Pass):
                    self.tell(ticket, Piece(item) if isinstance(item, str) else Provisional(item))
                    item = next(steps)
            ticket.waiting = item
            return
        except StopIteration:
            pass
        except KeyboardInterrupt:
            # An answer that had ended before has only its end left to tell.
            if getgeneratorstate(steps) != GEN_CLOSED:
                raise
        except Exception as error:
            self.fail(ticket, error)
            return
        try:
            self.tell(ticket, self.finished(ticket, stream))
        except Exception as error:
            self.fail(ticket, error)

    def finished(self, ticket: Ticket, stream: AnswerStream) -> Done:
        """The end of an answer."""
        answer = stream.result()
        if ticket.retried is not None:
            again = f"out of memory ({ticket.retried}); asked again in passes of {ticket.settings.prefill_chunk} tokens"
            answer = replace(answer, warnings=[*answer.warnings, again])
        return Done(answer, stream_cells(stream) if ticket.request.with_cells else None)

    def end_cancelled(self) -> None:
        """End the answers that nobody waits for any more, so that others can take their places."""
        for ticket in [ticket for ticket in self.running if ticket.cancelled]:
            self.advance(ticket, KeyboardInterrupt())

    def fail(self, ticket: Ticket, error: Exception) -> None:
        """End a request; one that lacked memory and has told nothing yet is first tried again, alone and in short passes."""
        again = isinstance(error, torch.OutOfMemoryError) and not ticket.delivered and ticket.retried is None
        if not again or ticket.cancelled:
            self.tell(ticket, Failed(error))
            return
        self.drop(ticket)
        ticket.retried, ticket.started = first_line(error), None
        ticket.settings = with_short_passes(ticket.settings)
        # The error holds what the failed attempt has allocated.
        error.__traceback__ = None
        # Before the memory is freed, which may fail: then this request ends with the others.
        with self.changed:
            self.waiting.appendleft(ticket)
        free_memory(self.session.cache, ticket.request.session.cache if ticket.request.session else None)
        self.prepare(ticket)

    def drop(self, ticket: Ticket) -> None:
        """Forget what a running answer holds."""
        if ticket in self.running:
            self.running.remove(ticket)
        ticket.stream = ticket.steps = ticket.waiting = ticket.prepared = None

    def tell(self, ticket: Ticket, event: Event) -> None:
        """Deliver what happened to a request; a failure that all further work would share ends everything."""
        if isinstance(event, LAST):
            self.drop(ticket)
            with self.changed, suppress(ValueError):
                self.waiting.remove(ticket)
        if isinstance(event, Provisional):
            # Its KV is freed; that of the whole prompt is yet to come.
            ticket.bytes = 0
        ticket.delivered |= isinstance(event, Piece)
        self.observe(ticket, event)
        ticket.deliver(event)
        if isinstance(event, Failed) and is_device_failure(event.error):
            self.give_up(event)

    def run(self) -> None:
        """Work until `close`; the engine's thread. An error outside of any request ends all of them."""
        try:
            while not self.closing or self.busy:
                self.step()
        except BaseException as error:
            self.give_up(Failed(error))
            raise
        finally:
            self.preparing.shutdown(wait=False, cancel_futures=True)

    def give_up(self, failure: Failed) -> None:
        """End after a failure that all further work would share: this process can answer nothing more."""
        with self.changed:
            self.closing = True
            abandoned = [*self.running, *self.waiting]
            self.running.clear()
            self.waiting.clear()
        for ticket in abandoned:
            self.drop(ticket)
            ticket.deliver(failure)

    def close(self) -> None:
        """Let `run` return once everything is done."""
        with self.changed:
            self.closing = True
            self.changed.notify_all()

"""Several questions at once: the passes that they need next run together, and each answer streams as it is decoded."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from specprefill_cli.answering.resolve import Prepared
from specprefill_cli.answering.session import Session
from specprefill_cli.answering.stream import AnswerStream
from specprefill_cli.answering.warm_up import warm_up_long
from specprefill_cli.batching.admission import (
    answer_bytes,
    automatic_concurrency,
    bounded_passes,
    largest_pass_bytes,
)
from specprefill_cli.batching.coroutine import Coroutine
from specprefill_cli.batching.packing import Packer
from specprefill_cli.batching.tickets import Consumer, Event, Ticket
from specprefill_cli.decoding.speculation import check_proposer
from specprefill_cli.documents.collection import Collection
from specprefill_cli.documents.document import Document
from specprefill_cli.prefill.cache_limit import memory_limit
from specprefill_cli.settings import AUTO, Settings


@dataclass(eq=False)
class Scheduler:
    """Answers many questions with one session, several at a time. Not thread-safe: one thread makes all calls.

        scheduler = Scheduler(session, concurrency=None, memory_bytes=None)
        ticket = scheduler.submit(documents, question, settings=None, identifier="", stop_tokens=True)
        while not scheduler.idle:
            for event in scheduler.step():
                event.ticket, event.text, event.answer, event.error
        scheduler.cancel(ticket)
        scheduler.interrupt(ticket)

    `submit` only queues: whatever is wrong with a question comes as its error event. `step` admits what fits, runs one
    pass for each model, and returns what came of it; it raises KeyboardInterrupt, and nothing else. The last event of a
    ticket has an answer or an error; a cancelled one has no more events. Questions are admitted in the order of
    submission, except that those about documents which another one is just prefilling wait for its KV.

    concurrency: questions that run at once; None: as many as pay (see `automatic_concurrency`)
    memory_bytes: limit of the running answers' KV and the largest pass; None: that of `--memory-cache`. One question runs
        whatever it needs
    """

    session: Session
    concurrency: int | None = None
    memory_bytes: int | None = None
    queue: deque[Ticket] = field(default_factory=deque, init=False)
    running: list[Ticket] = field(default_factory=list, init=False)
    events: list[Event] = field(default_factory=list, init=False)
    submitted: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        pair = self.session.pair
        self.packs = pair.ranks.size == 1
        automatic = automatic_concurrency(pair)
        self.most = 1 if not self.packs else self.concurrency or automatic
        limit = memory_limit(self.session.settings.memory_cache, pair) or memory_limit(AUTO, pair)
        self.limit = limit if self.memory_bytes is None else self.memory_bytes
        self.packer = Packer(pair)

    @property
    def pending(self) -> int:
        """Questions that wait to be admitted."""
        return len(self.queue)

    @property
    def active(self) -> int:
        """Questions that run."""
        return len(self.running)

    @property
    def free(self) -> int:
        """Questions that could still be submitted without waiting for others to end, where memory holds them."""
        return max(0, self.most - self.active - self.pending)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.queue or self.running or self.events)

    def submit(
        self,
        documents: Collection | Sequence[Document],
        question: str,
        settings: Settings | None = None,
        identifier: str = "",
        stop_tokens: bool = True,
        session: Session | None = None,
        consume: Consumer | None = None,
    ) -> Ticket:
        """Queue a question.

        settings: for this question; None: the session's
        session: a variant of the scheduler's session with the same models; None: the scheduler's
        consume: takes the answer, in place of the events for its text and its end
        """
        self.submitted += 1
        ticket = Ticket(
            collection=documents if isinstance(documents, Collection) else Collection(tuple(documents)),
            question=question,
            settings=self.session.settings if settings is None else settings,
            identifier=identifier,
            stop_tokens=stop_tokens,
            number=self.submitted,
            session=self.session if session is None else session,
            consume=consume,
        )
        self.queue.append(ticket)
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Forget a question, whether it waits or runs; its memory is free at once."""
        if ticket in self.queue:
            self.queue.remove(ticket)
        if ticket in self.running:
            self.running.remove(ticket)
            if ticket.work is not None:
                ticket.work.stop()
                ticket.work = None
        self.events = [event for event in self.events if event.ticket is not ticket]

    def interrupt(self, ticket: Ticket) -> bool:
        """End a running answer as Ctrl-C does: it is complete up to here. Whether there is one; otherwise it is cancelled."""
        if ticket.prefilled and ticket in self.running:
            ticket.interrupted = True
            with suppress(KeyboardInterrupt):
                self.resume(ticket, KeyboardInterrupt())
                return True
        self.cancel(ticket)
        return False

    def step(self) -> list[Event]:
        """Admit questions, run the passes that are due, and return what happened."""
        self.admit()
        self.tell_costs()
        for steps in self.packer.due(self.running):
            for ticket, outcome in self.packer.run(steps):
                self.resume(ticket, outcome)
        for ticket in [ticket for ticket in self.running if not self.packs]:
            self.resume(ticket, None)
        self.tell_costs()
        events, self.events = self.events, []
        return events

    def tell_costs(self) -> None:
        """Let speculation know how many answers share a pass."""
        for session in (self.session, *(ticket.session for ticket in self.running)):
            session.speculation.costs.sharing = max(1, len(self.running))

    def admit(self) -> None:
        """Start the questions that fit, the oldest first."""
        for ticket in list(self.queue):
            if len(self.running) >= self.most:
                return
            if ticket.session.cache is not None and any(
                not other.prefilled and other.shares == ticket.shares for other in self.running
            ):
                continue
            waited = ticket.prepared is not None
            try:
                prepared = ticket.prepared = ticket.prepared or self.prepare(ticket)
            except Exception as error:
                self.queue.remove(ticket)
                self.events.append(Event(ticket=ticket, error=error))
                continue
            ticket.bytes = answer_bytes(prepared)
            needed = largest_pass_bytes(prepared) + ticket.bytes + sum(other.bytes for other in self.running)
            if self.running and needed > self.limit:
                return
            if waited:
                prepared.request.clock.resume()
            self.queue.remove(ticket)
            self.running.append(ticket)
            # What the answer needs of it frees its memory with the answer.
            ticket.prepared = None
            ticket.work = Coroutine(partial(self.answer, ticket, prepared), self.packs)
            self.resume(ticket, None)

    def prepare(self, ticket: Ticket) -> Prepared:
        """Tokenise a question. Raises SpecprefillError where it cannot be answered."""
        session, settings = ticket.session, ticket.settings
        check_proposer(settings, session.pair)
        session.warm_up(settings)
        if not self.running:
            warm_up_long(session, settings, len(ticket.collection.text))
        prepared = session.prepare(ticket.collection, ticket.question, settings, ticket.identifier)
        seconds = self.packer.seconds_per_token
        if settings.prefill_chunk != AUTO or self.most == 1 or seconds is None:
            return prepared
        return bounded_passes(prepared, seconds)

    def answer(self, ticket: Ticket, prepared: Prepared) -> None:
        """Answer one question from prefill to its end; runs as a coroutine."""
        stream = ticket.session.answer(prepared, ticket.session.prefill(prepared))
        if not ticket.stop_tokens:
            stream.stop_tokens = frozenset()
        ticket.prefilled = True
        consume = ticket.consume or partial(self.report, ticket)
        consume(stream, self.pieces(ticket, stream))

    def report(self, ticket: Ticket, stream: AnswerStream, pieces: Iterator[str]) -> None:
        """Tell of an answer by events."""
        for text in pieces:
            self.events.append(Event(ticket=ticket, text=text))
        if stream.interrupted and not ticket.interrupted:
            raise KeyboardInterrupt
        self.events.append(Event(ticket=ticket, answer=stream.result()))

    def pieces(self, ticket: Ticket, stream: AnswerStream) -> Iterator[str]:
        """An answer's text; without packing the question pauses between two pieces, and can be interrupted there too."""
        pieces = iter(stream)
        for text in pieces:
            yield text
            if not self.packs and ticket.work is not None:
                try:
                    ticket.work.pause()
                except KeyboardInterrupt as error:
                    with suppress(StopIteration):
                        yield pieces.throw(error)

    def resume(self, ticket: Ticket, outcome: Tensor | BaseException | None) -> None:
        """Let a question go on up to its next pass."""
        if ticket.work is None:
            return
        try:
            ticket.work.resume(outcome)
        except Exception as error:
            self.events.append(Event(ticket=ticket, error=error))
        except BaseException:
            self.running.remove(ticket)
            raise
        if ticket.work.ended:
            ticket.work = None
            self.running.remove(ticket)

"""A question in the engine: read and tokenised, resolved, prefilled, then decoded pass by pass."""

from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any

from torch import Tensor

from specprefill_cli.answering.confirmation import Confirmation
from specprefill_cli.answering.resolve import ResolvedQuestion, loads_draft
from specprefill_cli.answering.session import Session
from specprefill_cli.answering.stream import AnswerStream
from specprefill_cli.answering.tasks import retrieve
from specprefill_cli.decoding.proposers import check_proposer
from specprefill_cli.decoding.speculation import SpeculationState
from specprefill_cli.documents.document import Collection
from specprefill_cli.engine.request import ANSWER, Cancelled, Done, Event, Piece, Provisional, ReadDocuments, Request
from specprefill_cli.errors import UsageError
from specprefill_cli.models.machine.memory_plan import SMALLEST
from specprefill_cli.models.running.adapter import run_together
from specprefill_cli.models.running.passes import ForwardInput
from specprefill_cli.prefill.request import EncodedQuestion
from specprefill_cli.record import Retrieval
from specprefill_cli.settings import AUTO


@dataclass(eq=False)
class Ticket:
    """A submitted request.

    session: the engine's, adapted to this request; known once that is encoded
    encoded: the tokenised prompt (EncodedQuestion), or the documents if nothing is to be answered; characters: of documents
    prepared: the question with resolved settings, until it is prefilled
    bytes: estimated size of its KV, and of its largest pass until it is prefilled
    steps: generator of the answer, which yields the passes it needs and is sent logits; next_pass: the pass that it waits for
    delivered: whether any text of the answer was delivered
    retried: whether the first attempt ran out of memory; the second attempt runs alone
    """

    request: Request
    on_event: Callable[[Event], None]
    session: Session = field(init=False)
    encoded: Future[Any] = field(default_factory=Future)
    prepared: ResolvedQuestion | None = None
    characters: int = 0
    bytes: int = 0
    stream: AnswerStream | None = None
    steps: Generator[ForwardInput | str | Confirmation, Any, None] | None = None
    next_pass: ForwardInput | None = None
    cancelled: bool = False
    delivered: bool = False
    retried: bool = False

    def encode(self, session: Session, read: ReadDocuments | None, independent: bool) -> EncodedQuestion | Collection:
        """Read the documents and tokenise the prompt, in another thread than the engine's."""
        request, settings = self.request, self.request.settings
        if independent:
            session = replace(session, speculation=SpeculationState(), cold_choice=True)
        if request.template is not None:
            session = replace(session, template=request.template, answerable=None)
        if request.no_prefix_sharing:
            session = session.with_cache(None)
        if self.cancelled:
            raise Cancelled
        self.session, documents = session, request.read_documents(read)
        self.characters = len(documents.text)
        if request.task != ANSWER:
            return documents
        if loads_draft(settings) and session.pair.draft is None:
            raise UsageError("this question needs the draft, but it is not loaded; start with a --mode that uses it")
        check_proposer(settings, session.pair)
        return session.encode(documents, request.question, settings)

    def fits_beside(self, running: Sequence["Ticket"], memory_limit: int) -> bool:
        """Whether a tokenised request may run beside these answers. Raises SpecprefillError if it cannot be answered."""
        # A request that ran out of memory is retried alone.
        if running and any(ticket.retried for ticket in (self, *running)):
            return False
        if self.request.task == ANSWER and self.prepared is None:
            encoded: EncodedQuestion = self.encoded.result()
            self.session.warm_up(self.request.settings)
            self.prepared = self.session.resolve(encoded, self.request.settings)
            self.bytes = self.prepared.kv_bytes + self.prepared.pass_bytes
        return self.prepared is None or not running or sum(ticket.bytes for ticket in (self, *running)) <= memory_limit

    def prefill(self) -> None:
        """Prefill the question and choose the first token of its answer."""
        assert self.prepared is not None, "it was resolved"
        session, prepared = self.session, self.prepared
        # The answer keeps the parts that it needs; free the rest now.
        self.prepared = None
        prepared.request.clock.resume()
        stream = session.answer(prepared, session.prefill(prepared.mode, prepared.request), self.request.stop_texts)
        if self.cancelled:
            raise Cancelled
        self.stream, self.steps = stream, stream.steps()
        self.bytes -= prepared.pass_bytes

    def retrieve(self) -> Retrieval:
        request, documents = self.request, self.encoded.result()
        return retrieve(self.session, documents, request.question, request.settings, request.top)

    def advance(self, outcome: Tensor | BaseException | None = None) -> Iterator[Event]:
        """Yield events up to the next pass or the end; outcome: the last pass's logits, or the error that it raised."""
        steps, stream = self.steps, self.stream
        assert steps is not None and stream is not None  # noqa: PT018
        try:
            step = steps.throw(outcome) if isinstance(outcome, BaseException) else steps.send(outcome)
            while not isinstance(step, ForwardInput):
                self.delivered |= isinstance(step, str)
                yield Piece(step) if isinstance(step, str) else Provisional()
                step = next(steps)
            self.next_pass = step
            return
        except StopIteration:
            pass
        except KeyboardInterrupt:
            # If the answer had ended already, only its last event is left to deliver.
            if getgeneratorstate(steps) != GEN_CLOSED:
                raise
        yield Done(stream.result(), stream.cells if self.request.with_cells else None)

    def restart(self, error: Exception) -> None:
        """Prepare a second attempt with short passes."""
        self.retried, settings = True, self.request.settings
        size = SMALLEST if settings.prefill_chunk == AUTO else min(SMALLEST, int(settings.prefill_chunk))
        self.request = replace(self.request, settings=settings.varied(prefill_chunk=size))
        # The traceback keeps the failed attempt's memory alive.
        error.__traceback__ = None


def run_passes(tickets: Sequence[Ticket], sharing: int) -> Iterator[tuple[Ticket, Tensor | BaseException]]:
    """Run every answer's next pass, packed by model; yield logits, or what ends it. sharing: questions that share it."""
    yield from [(ticket, KeyboardInterrupt()) for ticket in tickets if ticket.cancelled]
    groups: dict[int, list[Ticket]] = defaultdict(list)
    for ticket in tickets:
        assert ticket.next_pass is not None and ticket.stream is not None  # noqa: PT018
        ticket.stream.speculation.sharing = sharing
        groups[id(ticket.next_pass.model)].append(ticket)
    for group in groups.values():
        # An answer ends before its pass if the device failed in an earlier one.
        passes = {ticket: ticket.next_pass for ticket in group if ticket.next_pass is not None}
        outcomes = zip(passes, run_together([*passes.values()]), strict=True)
        yield from ((ticket, outcome) for ticket, outcome in outcomes if ticket.next_pass is not None)

"""A question in the engine: read and tokenised, resolved, prefilled, then decoded pass by pass."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from inspect import GEN_CLOSED, getgeneratorstate

from torch import Tensor

from specprefill_cli.answering.draft_side import dry_run, retrieve
from specprefill_cli.answering.resolve import ResolvedQuestion, loads_draft
from specprefill_cli.answering.session import Session
from specprefill_cli.answering.stream import AnswerStream
from specprefill_cli.decoding.speculation import check_proposer
from specprefill_cli.documents.document import Collection
from specprefill_cli.engine.request import (
    ANSWER,
    PASSAGES,
    Cancelled,
    Done,
    Event,
    EventCallback,
    Piece,
    Provisional,
    ReadDocuments,
    Request,
)
from specprefill_cli.errors import UsageError, first_line
from specprefill_cli.models.machine.memory_plan import SMALLEST, pass_bytes, token_bytes
from specprefill_cli.models.running.passes import ForwardInput
from specprefill_cli.prefill.prefix_cache import cached_tokens
from specprefill_cli.prefill.registry import MODES, runs_draft
from specprefill_cli.prefill.request import EncodedQuestion
from specprefill_cli.record import DryRun, Record, Retrieval
from specprefill_cli.settings import AUTO


@dataclass(eq=False, kw_only=True)
class Ticket:
    """A submitted request.

    submitted: on the clock of `time.perf_counter`
    session: the engine's session, adapted to this request once it is encoded
    encoded: the documents, or for an answer the tokenised prompt; prepared: the resolved settings
    bytes: estimated size of its KV
    steps: generator of the answer, which yields the passes it needs; next_pass: the pass that it waits for
    delivered: whether any text of the answer was delivered
    retried: why the first attempt ran out of memory; the second attempt runs alone
    """

    request: Request
    on_event: EventCallback
    submitted: float
    session: Session
    encoded: Future[EncodedQuestion | Collection] | None = None
    prepared: ResolvedQuestion | None = None
    bytes: int = 0
    stream: AnswerStream | None = None
    steps: Generator[ForwardInput | str | Record, Tensor, None] | None = None
    next_pass: ForwardInput | None = None
    cancelled: bool = False
    delivered: bool = False
    retried: str | None = None

    @property
    def is_ready(self) -> bool:
        """Whether tokenising the prompt has ended, successfully or not."""
        return self.encoded is not None and self.encoded.done()

    def encode(self, read: ReadDocuments, independent: bool) -> EncodedQuestion | Collection:
        """Read the documents and tokenise the prompt, in another thread than the engine's.

        independent: whether the answer must not depend on earlier answers
        """
        request, session, settings = self.request, self.session, self.request.settings
        if independent:
            # Keep the measurements of the warm-up, drop those of earlier answers.
            session = replace(session, speculation=session.speculation.without_acceptance(), cold_choice=True)
        if request.template is not None:
            session = replace(session, template=request.template)
        if request.no_prefix_sharing:
            session = session.with_cache(None)
        if self.cancelled:
            raise Cancelled
        read_started = time.perf_counter()
        documents = request.read_documents(read)
        self.session = session = replace(
            session, startup_seconds=session.startup_seconds + time.perf_counter() - read_started
        )
        if request.task != ANSWER:
            return documents
        if loads_draft(settings) and session.pair.draft is None:
            raise UsageError("this question needs the draft, but it is not loaded; start with a --mode that uses it")
        check_proposer(settings, session.pair)
        return session.encode(documents, request.question, settings)

    def resolve(self) -> None:
        """Resolve the settings of a question. Raises SpecprefillError if it cannot be answered."""
        assert self.encoded is not None, "it was submitted"
        prompt = self.encoded.result()
        assert isinstance(prompt, EncodedQuestion), "the question is to be answered"
        self.session.warm_up(self.request.settings)
        self.prepared = self.session.resolve(prompt, self.request.settings)
        self.bytes = answer_bytes(self.prepared)

    def prefill(self) -> None:
        """Prefill the question and choose the first token of its answer."""
        assert self.prepared is not None, "it was resolved"
        session, prepared = self.session, self.prepared
        # The answer keeps the parts that it needs; free the rest now.
        self.prepared = None
        prepared.request.clock.resume()
        stream = session.answer(prepared, session.prefill(prepared), self.request.stop_texts)
        if self.cancelled:
            raise Cancelled
        self.stream, self.steps = stream, stream.steps()

    def run_draft(self) -> Retrieval | DryRun:
        """Compute the passages or the plan of the question."""
        assert self.encoded is not None, "it was submitted"
        collection, request = self.encoded.result(), self.request
        assert isinstance(collection, Collection), "nothing is to be answered"
        if request.task == PASSAGES:
            return retrieve(self.session, collection, request.question, request.settings, request.top)
        return dry_run(self.session, collection, request.question, request.settings)

    def advance(self, outcome: Tensor | BaseException | None = None) -> Iterator[Event]:
        """Yield events of the answer up to its next pass or its end.

        outcome: the last pass's logits, or the error that it raised
        """
        steps, stream = self.steps, self.stream
        assert steps is not None and stream is not None  # noqa: PT018
        try:
            if isinstance(outcome, BaseException):
                item = steps.throw(outcome)
            else:
                item = next(steps) if outcome is None else steps.send(outcome)
            while not isinstance(item, ForwardInput):
                yield Piece(item) if isinstance(item, str) else Provisional(item)
                item = next(steps)
            self.next_pass = item
            return
        except StopIteration:
            pass
        except KeyboardInterrupt:
            # If the answer had ended already, only its last event is left to deliver.
            if getgeneratorstate(steps) != GEN_CLOSED:
                raise
        answer = stream.result()
        if self.retried is not None:
            size = self.request.settings.prefill_chunk
            again = f"out of memory ({self.retried}); asked again in passes of {size} tokens"
            answer = replace(answer, warnings=[*answer.warnings, again])
        yield Done(answer, stream.cells if self.request.with_cells else None)

    def restart(self, error: Exception) -> None:
        """Prepare a second attempt with short passes."""
        self.drop()
        self.retried = first_line(error)
        settings = self.request.settings
        size = SMALLEST if settings.prefill_chunk == AUTO else min(SMALLEST, int(settings.prefill_chunk))
        self.request = replace(self.request, settings=settings.varied(prefill_chunk=size))
        # The traceback keeps the failed attempt's memory alive.
        error.__traceback__ = None

    def drop(self) -> None:
        """Free what a running answer holds."""
        self.stream = self.steps = self.next_pass = self.prepared = None


def answer_bytes(prepared: ResolvedQuestion) -> int:
    """Bytes of KV cache that an answer is expected to hold while it runs, in draft and target.

    KV shared with other questions counts only for the question that computes it.
    """
    request, pair = prepared.request, prepared.request.pair
    answer_tokens = prepared.decoding.max_new_tokens
    kv_bytes = (MODES[prepared.mode].new_cache_tokens(request) + answer_tokens) * token_bytes(pair.target)
    if pair.draft is not None and (runs_draft(prepared.mode, request.scorer) or request.needs_draft_state):
        draft_prompt = request.draft_prompt
        cached = cached_tokens(request.draft_prefixes, pair.draft, draft_prompt, 1, request.draft_window)
        kv_bytes += (draft_prompt.length - cached + answer_tokens) * token_bytes(pair.draft)
    return kv_bytes


def largest_pass_bytes(prepared: ResolvedQuestion) -> int:
    """Bytes that the largest pass of a prompt takes besides the KV cache."""
    request, target = prepared.request, prepared.request.pair.loaded_target
    return min(request.prefill_chunk, request.prompt.length) * pass_bytes(target)

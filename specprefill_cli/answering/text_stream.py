"""What all answers have in common: text that arrives piece by piece, the evidence for it, and its record."""

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from specprefill_cli.answering.confidence import ANSWERABLE, DENIED, DOUBTFUL, NEARLY_SURE, ConfidenceModel, estimate
from specprefill_cli.answering.passages import Sentences, best_passages, rank_sentences
from specprefill_cli.answering.places import cite, document_cells, span_records
from specprefill_cli.documents.document import Collection
from specprefill_cli.models.machine.process import peak_memory_bytes
from specprefill_cli.prefill.bm25 import absent_names
from specprefill_cli.prefill.fates import Plan
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.record import Cell, Citation, Record
from specprefill_cli.settings import NEVER, STRICT, Settings


@dataclass(kw_only=True)
class TextStream(ABC):
    """An answer that arrives piece by piece: iterate over its text, then call `result`.

    prefilled: the prefilled or sent prompt; settings: resolved for this question; notes: warnings about the end
    answerable_model: as fitted for this target
    """

    prefilled: Any
    startup_seconds: float = 0.0
    pieces: list[str] = field(default_factory=list)
    interrupted: bool = False
    notes: list[str] = field(default_factory=list)
    settings: Settings
    answerable_model: ConfidenceModel | None = None

    @property
    @abstractmethod
    def request(self) -> PrefillRequest:
        """The prompt and how it was prefilled."""

    @property
    @abstractmethod
    def length_stop(self) -> bool:
        """Whether the answer was cut at its longest."""

    @property
    def collection(self) -> Collection:
        return self.request.collection

    @abstractmethod
    def __iter__(self) -> Generator[str, None, None]:
        """Yield pieces of text as they arrive; Ctrl-C ends the answer and keeps the text so far."""

    @abstractmethod
    def result(self) -> Record:
        """The finished answer with all its measurements."""

    def finished(self) -> Record:
        """Wait for the end and return the answer. Raises KeyboardInterrupt if Ctrl-C ended it."""
        for _ in self:
            pass
        if self.interrupted:
            raise KeyboardInterrupt
        return self.result()

    def interrupt(self, consequence: str = "the answer is incomplete") -> None:
        """Note that Ctrl-C ended the answer or its confirmation."""
        self.interrupted = True
        self.notes.append(f"interrupted: {consequence}")

    def emit(self, text: str) -> Iterator[str]:
        """Keep and yield a piece of text. Strips blanks before the answer: the prompt ends before the blank that starts it."""
        text = text if self.pieces else text.lstrip()
        if text:
            self.pieces.append(text)
            yield text

    @property
    def evidence(self) -> dict[str, float]:
        """Before the answer; names: the share of the question's names and numbers that the documents lack."""
        text, starts = self.collection.text, self.sentences.ranges[:, 0]
        return {"names": absent_names(self.request.question, text, starts) if len(starts) else 0.0}

    @cached_property
    def answerable(self) -> float | None:
        """The probability that the documents state an answer; None where it is not asked for."""
        models = [*filter(None, [self.answerable_model]), *ANSWERABLE]
        return None if self.settings.not_found == NEVER else estimate(models, self.evidence)

    @property
    def is_denied(self) -> bool:
        """Whether `not found` replaces the answer."""
        # Without a limit, the documents are not searched before the first word.
        limit = DENIED if self.settings.not_found == STRICT else NEARLY_SURE if self.answerable_model else 0.0
        return limit > 0 and self.answerable is not None and self.answerable < limit

    @property
    def text(self) -> str:
        return "".join(self.pieces).strip()

    @property
    def citations(self) -> list[Citation]:
        """Where the answer's text stands in the documents."""
        return cite(self.text, self.collection, self.plan_read, self.request.prompt.offsets, self.prefilled.importance)

    @property
    def cells(self) -> list[Cell]:
        """Every chunk with its fate, for the HTML page."""
        request, prefilled = self.request, self.prefilled
        offsets, importance = request.prompt.offsets, prefilled.importance
        return document_cells(self.collection, offsets, prefilled.plan, importance, request.chunk_size)

    @property
    def plan_read(self) -> Plan:
        """The fates of the spans that the target read for the answer."""
        return self.prefilled.plan

    @cached_property
    def sentences(self) -> Sentences:
        """The sentences of the documents with their relevance to the question."""
        request = self.request
        return rank_sentences(self.collection, request.question, request.prompt.offsets, self.prefilled.importance)

    def places(self, citations: Sequence[Citation]) -> list[int]:
        """The positions in the collection's text where citations begin."""
        return [self.collection.starts[source.number] + source.start for source in citations]

    def end_warnings(self, longest: str) -> list[str]:
        """Warnings about the answer's end. longest: the length at which it may have been cut, in words."""
        cut = [f"the answer was cut at {longest}; raise --max-new-tokens for more"] if self.length_stop else []
        return cut + self.notes

    def record(self, **measured: Any) -> Record:
        request, plan, passages, citations = self.request, self.prefilled.plan, [], self.citations
        if isinstance(self.settings.passages, int):
            passages = best_passages(self.sentences, self.settings.passages, self.places(citations))
        return Record(
            question=request.question,
            answer=self.text,
            target=request.pair.target.name,
            prompt_tokens=request.prompt.length,
            kept_tokens=plan.kept_tokens,
            kept_ratio=plan.kept_ratio,
            startup_seconds=self.startup_seconds,
            spans=span_records(self.collection, request.prompt, plan),
            peak_memory_bytes=peak_memory_bytes(),
            citations=self.collection.in_whole(citations),
            stopped="interrupt" if self.interrupted else "length" if self.length_stop else "stop",
            reused=[*request.reused, *self.prefilled.reused],
            passages=self.collection.in_whole(passages),
            answerable=None if self.answerable is None else self.answerable >= DOUBTFUL,
            answerable_probability=self.answerable,
            documents_left_out=self.collection.left_out,
            **measured,
        )

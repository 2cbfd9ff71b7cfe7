"""The answer of an endpoint while it comes: text piece by piece, and at the end everything that is known about it."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field

from specprefill_cli.answering.cells import span_records, stream_cells
from specprefill_cli.answering.citations import cite
from specprefill_cli.answering.passages import best_passages, trusted_quotes
from specprefill_cli.answering.relevance import rank_sentences
from specprefill_cli.documents.collection import Collection
from specprefill_cli.endpoint.choosing import Choice
from specprefill_cli.endpoint.client import Reply
from specprefill_cli.endpoint.options import SELECT
from specprefill_cli.models.memory import PeakMemory
from specprefill_cli.models.tokenizers import count_tokens
from specprefill_cli.prefill.phases import UPSTREAM
from specprefill_cli.prefill.registry import SCORERS
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.record import Cell, Record, Verdict
from specprefill_cli.settings import Settings

DECODES_ALONE = Verdict("off", "the endpoint decodes by itself")
# Share of our count below which the server's own count of the prompt suggests that it has cut it.
DOUBTFUL = 0.4


@dataclass(kw_only=True)
class EndpointStream:
    """As `AnswerStream`: iterate for pieces of text, then call `result`.

    prefilled: what was sent; reply, rest: the message and its pieces after the first
    upstream_seconds: from sending to the first piece; on_end: called when the answer ends, however it ends
    """

    collection: Collection
    question: str
    identifier: str
    settings: Settings
    prefilled: Choice
    reply: Reply
    rest: Iterator[str]
    first: str
    upstream_seconds: float
    memory: PeakMemory
    startup_seconds: float = 0.0
    on_end: Callable[[], None] | None = None
    pieces: list[str] = field(default_factory=list)
    interrupted: bool = False
    decode_seconds: float = 0.0

    @property
    def request(self) -> PrefillRequest:
        """The prompt as the draft read it."""
        return self.prefilled.request

    @property
    def cells(self) -> list[Cell]:
        """The documents by fate and importance, for a page."""
        return stream_cells(self)  # type: ignore[arg-type]

    def __iter__(self) -> Generator[str, None, None]:
        """Pieces of text as they arrive; interrupting it (Ctrl-C) keeps what came so far.

        Raises EndpointError where the answer is cut off.
        """
        began = time.perf_counter()
        try:
            yield from self.emit(self.first)
            for piece in self.rest:
                yield from self.emit(piece)
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            # Also where the caller stops iterating.
            self.decode_seconds = time.perf_counter() - began
            self.reply.close()
            if self.on_end is not None:
                self.on_end()

    def emit(self, text: str) -> Iterator[str]:
        """Keep and yield a piece of text, without blanks before the answer."""
        text = text if self.pieces else text.lstrip()
        if text:
            self.pieces.append(text)
            yield text

    def finished(self) -> Record:
        """Wait for the end; the answer. Raises KeyboardInterrupt when Ctrl-C ended it."""
        for _ in self:
            pass
        if self.interrupted:
            raise KeyboardInterrupt
        return self.result()

    def warnings(self, length_stop: bool) -> list[str]:
        """All warnings: about documents, what was chosen, how tokens are counted, and the answer's end."""
        draft = self.request.draft
        counted = self.reply.prompt_tokens
        there = f"; the endpoint counts {counted:,} in what was sent" if counted else ""
        warnings = [*self.collection.warnings, *draft.warnings, *self.prefilled.warnings]
        warnings.append(
            f"tokens are counted with {draft.name}'s tokenizer{there}; kept text is sent as prose, without its original "
            "positions, draft KV or speculation"
        )
        if counted and counted < DOUBTFUL * self.prefilled.plan.kept_tokens:
            warnings.append(
                "the endpoint counts so few tokens that it may have cut the prompt; give its model a longer context"
            )
        if length_stop:
            warnings.append("the answer was cut at its longest; raise --max-new-tokens for more")
        if self.interrupted:
            warnings.append("interrupted: the answer is incomplete")
        return warnings

    def result(self) -> Record:
        """The finished answer with all that is known about it."""
        request, choice, pair = self.request, self.prefilled, self.request.pair
        collection, offsets = self.collection, self.request.prompt.offsets
        text = "".join(self.pieces).strip()
        tokens = self.reply.completion_tokens or count_tokens(text)
        length_stop = self.reply.finish_reason == "length"
        citations = cite(text, collection, choice.plan, offsets, choice.importance)
        sentences = rank_sentences(collection, self.question, offsets, choice.importance)
        places = [collection.starts[source.number] + source.start for source in citations]
        shown = self.settings.passages
        selects = choice.mode == SELECT
        return Record(
            id=self.identifier,
            question=self.question,
            answer=text,
            mode=choice.mode,
            reason=choice.reason,
            draft=request.draft.name if selects and SCORERS[request.scorer].uses_draft else None,
            target=pair.target.name,
            prompt_tokens=request.prompt.length,
            kept_tokens=choice.plan.kept_tokens,
            kept_ratio=choice.plan.kept_ratio,
            ttft_seconds=request.clock.ttft + self.upstream_seconds,
            startup_seconds=self.startup_seconds,
            phases=request.clock.phases() | {UPSTREAM: self.upstream_seconds},
            spans=span_records(collection, request.prompt, choice.plan),
            generated_tokens=tokens,
            tokens_per_second=(tokens - 1) / self.decode_seconds if tokens > 1 and self.decode_seconds else None,
            acceptance_rate=None,
            peak_memory_bytes=self.memory.bytes(),
            citations=citations,
            warnings=self.warnings(length_stop),
            stopped="interrupt" if self.interrupted else "length" if length_stop else "stop",
            speculation=DECODES_ALONE,
            reused=[*request.reused, *choice.reused],
            passages=best_passages(collection, sentences, shown, trusted_quotes(sentences, places))
            if isinstance(shown, int)
            else [],
            scorer=request.scorer if selects else None,
            draft_window=request.draft_window if selects and SCORERS[request.scorer].uses_draft else None,
        )

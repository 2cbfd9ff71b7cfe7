"""The answer while it comes: text piece by piece, and at the end everything that was measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from specprefill_cli.answering.answer import Answer, span_records
from specprefill_cli.answering.citations import cite
from specprefill_cli.decoding.adaptive import SWITCHED_OFF
from specprefill_cli.decoding.measures import DecodeSpeed, RoundLog
from specprefill_cli.decoding.reader import ModelReader
from specprefill_cli.decoding.sampling import Sampler
from specprefill_cli.decoding.speculation import choose_speculator
from specprefill_cli.decoding.speculative import Speculator, decode
from specprefill_cli.decoding.streaming import TextStream
from specprefill_cli.documents.collection import Collection
from specprefill_cli.models.memory import PeakMemory
from specprefill_cli.prefill.auto_mode import needs_draft
from specprefill_cli.prefill.modes.base import Prefilled
from specprefill_cli.prefill.phases import PhaseClock
from specprefill_cli.prefill.registry import MODES
from specprefill_cli.prefill.scorers.base import ScoringRequest
from specprefill_cli.settings import Settings

if TYPE_CHECKING:
    from specprefill_cli.answering.session import Session


@dataclass
class AnswerStream:
    """The answer while it is decoded: iterate for pieces of text, then call `result`.

    stop_tokens: ids that end it; a caller that wants a given length may take them away before iterating
    """

    session: Session
    collection: Collection
    question: str
    settings: Settings
    identifier: str
    request: ScoringRequest
    mode: str
    reason: str | None
    prefilled: Prefilled
    sampler: Sampler
    first: int
    stop_tokens: frozenset[int]
    clock: PhaseClock
    memory: PeakMemory
    tokens: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    speed: DecodeSpeed = field(default_factory=DecodeSpeed)
    speculator: Speculator | None = None
    interrupted: bool = False

    def __iter__(self) -> Iterator[str]:
        """Pieces of text as they are decoded; interrupting it (Ctrl-C) keeps what came so far."""
        target = self.session.pair.target
        stream = TextStream(target.tokenizer)
        self.speculator = choose_speculator(
            self.request, self.prefilled, self.settings, self.sampler, self.stop_tokens, self.session.speculation
        )
        reader = ModelReader(target.model, self.prefilled.state, self.request.prompt.length, self.session.pair.ranks)
        try:
            for token in decode(
                reader,
                self.first,
                self.stop_tokens,
                self.settings.max_new_tokens,
                self.sampler,
                self.speed,
                self.speculator,
            ):
                self.tokens.append(token)
                yield from self.emit(stream.push(token))
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            # Also where nobody reads on.
            if self.session.shared is not None:
                self.session.shared.write()
        yield from self.emit(stream.finish())

    def finished(self) -> Answer:
        """Decode to the end; the answer. Raises KeyboardInterrupt when Ctrl-C ended it."""
        for _ in self:
            pass
        if self.interrupted:
            raise KeyboardInterrupt
        return self.result()

    def emit(self, text: str) -> Iterator[str]:
        if not self.pieces:
            # Templates end before the blank that starts the answer.
            text = text.lstrip()
        if text:
            self.pieces.append(text)
            yield text

    @property
    def rounds(self) -> RoundLog:
        return self.speculator.log if self.speculator is not None else RoundLog()

    @property
    def draft_ran(self) -> bool:
        return needs_draft(replace(self.settings, mode=self.mode)) or "draft" in self.rounds.proposers

    def result(self) -> Answer:
        """The finished answer with all its measurements."""
        prompt, plan = self.request.prompt, self.prefilled.plan
        text = "".join(self.pieces).strip()
        pair = self.session.pair
        decoded = len(self.tokens)
        length_stop = decoded >= self.settings.max_new_tokens
        warnings = self.collection.warnings + pair.target.warnings
        if pair.draft is not None and self.draft_ran:
            warnings += pair.draft.warnings
        warnings += self.prefilled.warnings
        if length_stop:
            warnings.append(f"the answer was cut at {decoded} tokens; raise --max-new-tokens for more")
        if self.interrupted:
            warnings.append("interrupted: the answer is incomplete")
        return Answer(
            id=self.identifier,
            question=self.question,
            answer=text,
            mode=self.mode,
            reason=self.reason,
            draft=pair.draft.name if pair.draft is not None and self.draft_ran else None,
            target=pair.target.name,
            prompt_tokens=prompt.length,
            kept_tokens=plan.kept_tokens,
            kept_ratio=plan.kept_ratio,
            ttft_seconds=self.clock.ttft,
            startup_seconds=self.session.startup_seconds,
            phases=self.clock.phases(),
            spans=span_records(self.collection, prompt, plan),
            generated_tokens=decoded,
            tokens_per_second=self.speed.tokens_per_second,
            acceptance_rate=self.rounds.acceptance_rate,
            peak_memory_bytes=self.memory.bytes(),
            citations=cite(text, self.collection, plan, prompt.offsets, self.prefilled.importance),
            warnings=warnings,
            stopped="interrupt" if self.interrupted else "length" if length_stop else "stop",
            accepted_length_mean=self.rounds.accepted_length_mean,
            accepted_histogram=self.rounds.accepted_histogram,
            proposer=" and ".join(self.rounds.proposers) or None,
            speculation=self.speculator.verdict if self.speculator is not None else SWITCHED_OFF,
            reused=[*self.request.reused, *self.prefilled.reused],
            scorer=self.settings.scorer if MODES[self.mode].uses_draft else None,
            draft_window=self.prefilled.draft_window,
        )

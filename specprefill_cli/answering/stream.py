"""The answer while it is decoded: text piece by piece, and at the end everything that was measured."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean

from torch import Tensor

from specprefill_cli.answering.cells import span_records
from specprefill_cli.answering.citations import cite
from specprefill_cli.answering.confidence import ConfidenceModel, Signals, answer_signals
from specprefill_cli.answering.confirmation import Confirmation, confirm
from specprefill_cli.answering.passages import best_passages, trusted_quotes
from specprefill_cli.answering.relevance import Sentences, rank_sentences
from specprefill_cli.answering.resolve import Resolved
from specprefill_cli.decoding.adaptive import SpeculationState
from specprefill_cli.decoding.measures import DecodeSpeed, RoundLog
from specprefill_cli.decoding.reader import ModelReader
from specprefill_cli.decoding.sampling import Sampler, log_probabilities
from specprefill_cli.decoding.speculation import choose_speculator
from specprefill_cli.decoding.speculative import Speculator, decode
from specprefill_cli.decoding.streaming import TextStream
from specprefill_cli.documents.collection import Collection
from specprefill_cli.models.adapter import items_of
from specprefill_cli.models.cache import new_state
from specprefill_cli.models.memory import PeakMemory
from specprefill_cli.models.passes import Pass, mapped
from specprefill_cli.prefill.auto_mode import runs_draft
from specprefill_cli.prefill.fates import full_plan
from specprefill_cli.prefill.modes.base import PrefillResult
from specprefill_cli.prefill.positions import COMPACT
from specprefill_cli.prefill.registry import MODES
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.record import ORIGINAL, SWITCHED_OFF, Citation, Passage, Record


@dataclass(kw_only=True)
class AnswerStream:
    """The answer while it is decoded: iterate for pieces of text, then call `result`.

    prefilled: what prefill returned; first_token: chosen from its logits
    stop_tokens: ids that end the answer; a caller that needs a given length may empty it before iterating
    confidence: tells how likely the answer is right
    on_end: called when decoding ends, however it ends
    confirmation: by full prefill, once the answer has ended; None where it is not asked for
    """

    collection: Collection
    question: str
    identifier: str
    resolved: Resolved
    prefilled: PrefillResult
    sampler: Sampler
    first_token: int
    stop_tokens: frozenset[int]
    memory: PeakMemory
    speculation: SpeculationState
    startup_seconds: float = 0.0
    confidence: ConfidenceModel | None = None
    on_end: Callable[[], None] | None = None
    tokens: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    speed: DecodeSpeed = field(default_factory=DecodeSpeed)
    speculator: Speculator | None = None
    interrupted: bool = False
    confirmation: Confirmation | None = None

    @property
    def request(self) -> PrefillRequest:
        """The prompt and how it was prefilled."""
        return self.resolved.request

    def __iter__(self) -> Generator[str, None, None]:
        """Pieces of text as they are decoded; interrupting it (Ctrl-C) keeps what came so far.

        Where the answer is to be confirmed, these are of the provisional one, and the loop ends with the confirmation.
        """
        yield from (item for item in items_of(self.steps()) if isinstance(item, str))

    def steps(self) -> Generator[Pass | str | Record, Tensor, None]:
        """Pieces of text, and the passes that they need, whose logits it is sent.

        Where the answer is to be confirmed, its record follows, still provisional, and the passes of that. A
        KeyboardInterrupt thrown into it ends the answer, which is complete up to there.
        """
        text = TextStream(self.request.pair.target.tokenizer)

        def pieces(token: int) -> Iterator[str]:
            self.tokens.append(token)
            return self.emit(text.push(token))

        try:
            yield from mapped(self.decode(), pieces)
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            # Also where the caller stops iterating.
            if self.on_end is not None:
                self.on_end()
        yield from self.emit(text.finish())
        if self.resolved.decoding.confirm and not self.interrupted:
            yield from confirm(self)

    def release(self) -> None:
        """Free the keys and values of an answer that has ended."""
        self.prefilled = replace(self.prefilled, state=new_state(), draft_state=None)
        if self.speculator is not None:
            self.speculator.proposers = ()

    def replace_answer(self, tokens: list[int]) -> None:
        """Give the answer other tokens, and their text."""
        text = TextStream(self.request.pair.target.tokenizer)
        self.tokens, self.pieces = tokens, [*map(text.push, tokens), text.finish()]

    def decode(self) -> Generator[Pass | int, Tensor, None]:
        """The tokens of the answer, and the passes that they need."""
        request, decoding = self.request, self.resolved.decoding
        self.speculator = choose_speculator(
            request, self.prefilled, decoding, self.sampler, self.stop_tokens, self.speculation
        )
        prefilled = self.prefilled
        reader = ModelReader(request.target.model, prefilled.state, prefilled.answer_position, request.pair.ranks)
        return decode(
            reader,
            self.first_token,
            self.stop_tokens,
            decoding.max_new_tokens,
            self.sampler,
            self.speed,
            self.speculator,
        )

    def finished(self) -> Record:
        """Decode to the end; the answer. Raises KeyboardInterrupt when Ctrl-C ended it."""
        for _ in self:
            pass
        if self.interrupted:
            raise KeyboardInterrupt
        return self.result()

    def emit(self, text: str) -> Iterator[str]:
        """Keep and yield a piece of text, without blanks before the answer: templates end before the one that starts it."""
        text = text if self.pieces else text.lstrip()
        if text:
            self.pieces.append(text)
            yield text

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(self.pieces).strip()

    @property
    def rounds(self) -> RoundLog:
        """The rounds of speculative decoding so far."""
        return self.speculator.log if self.speculator is not None else RoundLog()

    @property
    def ttft_seconds(self) -> float:
        """Time to first token."""
        return self.request.clock.ttft

    @property
    def draft_ran(self) -> bool:
        """Whether the draft scored the prompt or proposed tokens."""
        return runs_draft(self.resolved.mode, self.request.scorer) or "draft" in self.rounds.proposers

    def warnings(self, length_stop: bool) -> list[str]:
        """All warnings: about documents, models, prefill and the answer's end."""
        draft = self.request.pair.draft
        warnings = [*self.collection.warnings, *self.request.target.warnings]
        warnings += draft.warnings if draft is not None and self.draft_ran else []
        warnings += self.prefilled.warnings
        if length_stop:
            warnings.append(f"the answer was cut at {len(self.tokens)} tokens; raise --max-new-tokens for more")
        if self.confirmation is not None:
            warnings += self.confirmation.warnings
        elif self.interrupted:
            warnings.append("interrupted: the answer is incomplete")
        return warnings

    @cached_property
    def sentences(self) -> Sentences:
        """The sentences of the documents with their relevance to the question."""
        return rank_sentences(self.collection, self.question, self.request.prompt.offsets, self.prefilled.importance)

    def passages(self, citations: Sequence[Citation], count: int) -> list[Passage]:
        """The passages to show with an answer: first what it quotes."""
        leading = trusted_quotes(self.sentences, self.places(citations))
        return best_passages(self.collection, self.sentences, count, leading)

    def places(self, citations: Sequence[Citation]) -> list[int]:
        """The characters of the collection's text at which citations begin."""
        return [self.collection.starts[source.number] + source.start for source in citations]

    def signals(self, text: str, citations: Sequence[Citation]) -> Signals | None:
        """What tells whether the answer is right; None where it is no quote of the target's."""
        source = max(map(self.sentences.relevance_at, self.places(citations)), default=0.0)
        return answer_signals(text, self.log_probabilities, source, self.sentences.highest)

    def answer_confidence(self, text: str, citations: Sequence[Citation]) -> float | None:
        """The probability that the answer is right; None where the pair was not calibrated for it."""
        signals = self.signals(text, citations) if self.confidence is not None else None
        return self.confidence.probability(signals) if self.confidence is not None and signals is not None else None

    @property
    def log_probabilities(self) -> list[float]:
        """Of the tokens decoded so far, by the target; after full prefill where that has given the answer."""
        if self.confirmation is not None and self.confirmation.log_probabilities:
            return self.confirmation.log_probabilities
        return log_probabilities(self.prefilled.logits[None], [self.first_token]) + self.speed.log_probabilities

    def result(self) -> Record:
        """The finished answer with all its measurements."""
        request, prefilled, resolved, rounds = self.request, self.prefilled, self.resolved, self.rounds
        prompt, plan, pair = request.prompt, prefilled.plan, request.pair
        text, confirmation = self.text, self.confirmation
        length_stop = len(self.tokens) >= resolved.decoding.max_new_tokens
        passage_count = resolved.decoding.passages
        confirmed = confirmation.confirmed if confirmation is not None else None
        read = plan if confirmed is None else full_plan(prompt.length, prompt.document)
        citations = cite(text, self.collection, read, prompt.offsets, prefilled.importance)
        return Record(
            id=self.identifier,
            question=self.question,
            answer=text,
            mode=resolved.mode,
            reason=resolved.mode_reason,
            draft=pair.draft.name if pair.draft is not None and self.draft_ran else None,
            target=pair.target.name,
            prompt_tokens=prompt.length,
            kept_tokens=plan.kept_tokens,
            kept_ratio=plan.kept_ratio,
            ttft_seconds=self.ttft_seconds,
            startup_seconds=self.startup_seconds,
            phases=request.clock.phases(),
            spans=span_records(self.collection, prompt, plan),
            generated_tokens=len(self.tokens),
            tokens_per_second=self.speed.tokens_per_second,
            acceptance_rate=rounds.acceptance_rate,
            peak_memory_bytes=self.memory.bytes(),
            citations=citations,
            warnings=self.warnings(length_stop),
            stopped="interrupt" if self.interrupted else "length" if length_stop else "stop",
            accepted_length_mean=rounds.accepted_length_mean,
            accepted_histogram=rounds.accepted_histogram,
            proposer=" and ".join(rounds.proposers) or None,
            speculation=self.speculator.verdict if self.speculator is not None else SWITCHED_OFF,
            reused=[*request.reused, *prefilled.reused],
            passages=self.passages(citations, passage_count) if isinstance(passage_count, int) else [],
            log_probability=fmean(self.log_probabilities) if self.log_probabilities else None,
            confidence=self.answer_confidence(text, citations),
            expected_speedup=resolved.expected_speedup,
            scorer=request.scorer if MODES[resolved.mode].uses_draft else None,
            draft_window=prefilled.draft_window,
            gate=prefilled.gate,
            positions=ORIGINAL if prefilled.compact is None else COMPACT,
            position_factor=1.0 if prefilled.compact is None else prefilled.compact.factor,
            confirmed=confirmed,
            provisional_answer=confirmation.provisional if confirmation is not None else None,
            provisional_ttft_seconds=self.ttft_seconds if confirmation is not None else None,
            confirm_seconds=confirmation.seconds if confirmation is not None else None,
        )

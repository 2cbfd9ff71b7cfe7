"""The answer during decoding: text piece by piece, and all measurements at the end."""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from statistics import fmean

from torch import Tensor

from specprefill_cli.answering.confidence import LARGEST_MARGIN, RIGHT, ConfidenceModel, estimate
from specprefill_cli.answering.confirmation import Confirmation, confirm
from specprefill_cli.answering.resolve import ResolvedQuestion
from specprefill_cli.answering.text_stream import TextStream
from specprefill_cli.decoding.rounds import DecodeLog, choose_speculator, decode
from specprefill_cli.decoding.runner import SequenceRunner
from specprefill_cli.decoding.sampling import Detokenizer, Sampler, StopFilter, log_probabilities
from specprefill_cli.decoding.speculation import SpeculationState, Speculator
from specprefill_cli.documents.language import says_not_found
from specprefill_cli.models.running.adapter import items_of
from specprefill_cli.models.running.passes import ForwardInput
from specprefill_cli.models.sources.tokenizers import encode_text
from specprefill_cli.prefill.auto_mode import expected_speedup
from specprefill_cli.prefill.fates import Plan, full_plan
from specprefill_cli.prefill.registry import MODES
from specprefill_cli.prefill.request import PrefillRequest, PrefillResult
from specprefill_cli.record import COMPACT, NOT_FOUND, ORIGINAL, PLANNED_MODE, SWITCHED_OFF, Record


class StopTextReached(Exception):
    """The answer has reached a stop text."""


@dataclass(kw_only=True)
class AnswerStream(TextStream):
    """The answer during decoding.

    first_token: chosen from the logits of prefill
    stop_tokens: ids that end the answer; a caller that needs a fixed length may empty it before iterating
    confidence: gives the probability that the answer is right; states: signal of the prompt's last token for `answerable`
    confirmation: what full prefill says of it, if requested; known_tokens: of a provisional answer, probably equal
    """

    resolved: ResolvedQuestion
    prefilled: PrefillResult
    sampler: Sampler
    first_token: int
    stop_tokens: frozenset[int]
    stop_filter: StopFilter = field(default_factory=partial(StopFilter, ()))
    speculation: SpeculationState
    confidence: ConfidenceModel | None = None
    states: float | None = None
    tokens: list[int] = field(default_factory=list)
    log: DecodeLog = field(default_factory=DecodeLog)
    speculator: Speculator | None = None
    confirmation: Confirmation = field(default_factory=Confirmation)
    known_tokens: tuple[int, ...] = ()

    @property
    def request(self) -> PrefillRequest:
        return self.resolved.request

    def __iter__(self) -> Generator[str, None, None]:
        """Yield pieces of the (provisional) answer as they are decoded, once; Ctrl-C ends it and keeps the text so far."""
        items = () if self.tokens or self.pieces else items_of(self.steps())
        yield from (item for item in items if isinstance(item, str))

    def steps(self) -> Generator[ForwardInput | str | Confirmation, Tensor, None]:
        """Yield pieces of text, and the passes that they need, with logits sent back; then the same for the confirmation.

        A KeyboardInterrupt thrown into the generator ends the answer and keeps the text so far.
        """
        if self.is_denied and not (self.settings.confirm and self.resolved.mode == PLANNED_MODE):
            yield from self.emit(NOT_FOUND)
            return
        detokenizer = Detokenizer(self.request.pair.target.tokenizer)

        def emit_token(token: int) -> Iterator[str]:
            self.tokens.append(token)
            yield from self.emit(self.stop_filter.push(detokenizer.push(token)))
            if self.stop_filter.stopped:
                raise StopTextReached

        try:
            yield from self.decode(emit_token)
            yield from self.emit(self.stop_filter.push(detokenizer.finish()) + self.stop_filter.held)
        except StopTextReached:
            pass
        except KeyboardInterrupt:
            self.interrupt()
            yield from self.emit(self.stop_filter.held + detokenizer.finish())
        if self.settings.confirm and not self.interrupted:
            yield from confirm(self)

    def decode(self, emit: Callable[[int], Iterator[str]]) -> Generator[ForwardInput | str, Tensor, None]:
        """Decode the answer: yield the pieces that `emit` makes from its tokens, and the passes that they need."""
        request, prefilled, sampler, stop_tokens = self.request, self.prefilled, self.sampler, self.stop_tokens
        self.speculator = choose_speculator(
            request, prefilled, self.settings, sampler, stop_tokens, self.speculation, self.known_tokens
        )
        runner = SequenceRunner(request.target.model, prefilled.state, prefilled.answer_position, request.pair.ranks)
        limit = self.settings.max_new_tokens
        return decode(runner, self.first_token, stop_tokens, limit, sampler, self.log, self.speculator, emit=emit)

    @property
    def length_stop(self) -> bool:
        return len(self.tokens) >= self.settings.max_new_tokens and not self.stop_filter.stopped

    @property
    def plan_read(self) -> Plan:
        prompt = self.request.prompt
        return self.prefilled.plan if self.confirmation.confirmed is None else full_plan(prompt.length, prompt.document)

    @property
    def signals(self) -> dict[str, float] | None:
        """The signals of the confidence; None for `not found` and an empty answer.

        mean, lowest: log-probability of the answer's tokens
        source: relevance of the sentence that the answer quotes minus the highest relevance; at most 0
        """
        scores = self.log_probabilities
        if not self.text or not scores or says_not_found(self.text):
            return None
        source = max(map(self.sentences.relevance_at, self.places(self.citations)), default=0.0)
        return {"mean": fmean(scores), "lowest": min(scores), "source": source - self.sentences.highest}

    @property
    def evidence(self) -> dict[str, float]:
        """What is known before the answer; margin: of `not found` over the likeliest other first token, in nats."""
        # An answer begins with a blank after a plain template.
        texts = (text + NOT_FOUND[1:] for text in (NOT_FOUND[0], NOT_FOUND[0].upper(), f" {NOT_FOUND[0]}"))
        tokens = sorted({encode_text(self.request.target.tokenizer, text)[0][0] for text in texts})
        scores = self.prefilled.logits.float().log_softmax(-1)
        refusal = float(scores[tokens].logsumexp(0))
        scores[tokens] = -inf
        margin = min(max(refusal - float(scores.max()), -LARGEST_MARGIN), LARGEST_MARGIN)
        return super().evidence | {"margin": margin} | ({} if self.states is None else {"states": self.states})

    @property
    def log_probabilities(self) -> list[float]:
        """Of the tokens so far, by the target; after full prefill if that gave the answer."""
        first = log_probabilities(self.prefilled.logits[None], [self.first_token]).tolist()
        return self.confirmation.log_probabilities or [*first, *self.log.log_probabilities]

    def expected_speedup(self) -> float | None:
        """Over `full` without caches, by what was kept; None if the cost is unknown."""
        request = self.request.without_caches()
        if self.resolved.mode == PLANNED_MODE:
            request = replace(request, keep=self.prefilled.plan.kept_ratio)
        return expected_speedup(self.resolved.mode, request)

    def result(self) -> Record:
        request, prefilled, resolved = self.request, self.prefilled, self.resolved
        confirmation, ttft_seconds, signals = self.confirmation, request.clock.ttft, self.signals
        draft_used = request.clock.draft_ran or "draft" in self.log.proposers
        return self.record(
            mode=resolved.mode,
            reason=resolved.mode_reason,
            draft=request.draft.name if request.pair.draft is not None and draft_used else None,
            ttft_seconds=ttft_seconds,
            phases=request.clock.phases(),
            generated_tokens=len(self.tokens),
            cached_tokens=prefilled.cached_tokens,
            warnings=[*self.collection.warnings, *prefilled.warnings, *self.end_warnings(f"{len(self.tokens)} tokens")],
            speculation=self.speculator.verdict if self.speculator is not None else SWITCHED_OFF,
            log_probability=fmean(self.log_probabilities) if self.log_probabilities else None,
            confidence=None if signals is None else estimate([*filter(None, [self.confidence]), *RIGHT], signals),
            expected_speedup=self.expected_speedup(),
            scorer=request.scorer if MODES[resolved.mode].uses_draft else None,
            draft_window=prefilled.draft_window,
            gate=prefilled.gate,
            positions=ORIGINAL if prefilled.compact is None else COMPACT,
            position_factor=1.0 if prefilled.compact is None else prefilled.compact.factor,
            confirmed=confirmation.confirmed,
            provisional_answer=confirmation.provisional,
            provisional_ttft_seconds=None if confirmation.provisional is None else ttft_seconds,
            confirm_seconds=confirmation.seconds,
            **self.log.figures(),
        )

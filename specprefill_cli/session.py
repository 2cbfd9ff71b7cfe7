"""A loaded pair that answers questions about documents: the only place that strings the stages together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from specprefill_cli.answer import Answer, SpanRecord
from specprefill_cli.citations import cite
from specprefill_cli.decoding.plain import DecodeSpeed, decode
from specprefill_cli.decoding.sampling import Sampler
from specprefill_cli.decoding.streaming import TextStream
from specprefill_cli.documents.collection import Collection
from specprefill_cli.errors import UsageError
from specprefill_cli.memory import PeakMemory
from specprefill_cli.models.loading import LoadedPair, load_pair
from specprefill_cli.models.pairs import BUNDLED, Pair, find_pair
from specprefill_cli.models.placement import Placement, choose_placement
from specprefill_cli.prefill.choice import automatic_mode, check_fits
from specprefill_cli.prefill.modes import MODES
from specprefill_cli.prefill.modes.base import Prefilled
from specprefill_cli.prefill.plan import Plan
from specprefill_cli.prefill.scorers import SCORERS
from specprefill_cli.prefill.scorers.base import ScoringRequest
from specprefill_cli.prompting import Prompt, Template, encode_prompt, load_template, render
from specprefill_cli.settings import AUTO, Settings, prompt_folder
from specprefill_cli.timing import PhaseClock

PairLoader = Callable[[Pair, Placement, str, bool, bool], LoadedPair]


def check_names(settings: Settings) -> None:
    """Raises UsageError for a mode or scorer that is not registered; called before anything is loaded."""
    if settings.mode != AUTO and settings.mode not in MODES:
        raise UsageError(f"--mode {settings.mode}: unknown; use one of {', '.join([AUTO, *MODES])}")
    if settings.scorer not in SCORERS:
        raise UsageError(f"--scorer {settings.scorer}: unknown; use one of {', '.join(SCORERS)}")


def needs_draft(settings: Settings) -> bool:
    speculative = settings.mode == AUTO or MODES[settings.mode].speculative
    return speculative and SCORERS[settings.scorer].needs_draft


def open_session(settings: Settings, draft: bool | None = None, load: PairLoader = load_pair) -> Session:
    """Load the pair that the settings name; `draft` overrules whether the draft is loaded too.

    load: what loads it; `load_draft_side` suffices for a plan

    Raises SpecprefillError when it cannot be loaded.
    """
    check_names(settings)
    pair = find_pair(settings.pair, settings.draft, settings.target)
    template = load_template(settings.prompt or pair.prompt, [prompt_folder(settings)])
    with_draft = needs_draft(settings) if draft is None else draft
    if with_draft and pair.draft.startswith(BUNDLED) and not pair.target.startswith(BUNDLED):
        raise UsageError("--target needs a --draft that suits it; or use --mode full, or --scorer lexical")
    placement = choose_placement(settings.devices)
    return Session(load(pair, placement, settings.dtype, settings.offline, with_draft), template)


@dataclass
class Session:
    """Answers questions with one loaded pair and one template.

    startup_seconds: time from the program's start until it could be asked; set by whoever measures it
    """

    pair: LoadedPair
    template: Template
    startup_seconds: float = 0.0
    warm: bool = field(default=False, init=False)

    def ask(self, collection: Collection, question: str, settings: Settings, identifier: str = "") -> AnswerStream:
        """Prefill for a question; the answer's text then comes from iterating over the stream.

        Raises UsageError for an empty question, SpecprefillError when the prompt does not fit the pair.
        """
        if not question.strip():
            raise UsageError("the question is empty; give it after the documents, in quotes")
        self.warm_up(settings)
        memory = PeakMemory()
        clock = PhaseClock(self.pair.wait)
        request = self.prepare(collection, question, settings, clock)
        mode, reason = automatic_mode(settings, request) if settings.mode == AUTO else (settings.mode, None)
        check_fits(request, settings, needs_draft(replace(settings, mode=mode)))
        prefilled = MODES[mode].prefill(request, settings)
        sampler = Sampler(settings.temperature, settings.top_k, settings.top_p, settings.seed)
        with clock.phase("first_token"):
            first = sampler(prefilled.logits)
        return AnswerStream(
            self,
            collection,
            question,
            settings,
            identifier,
            request,
            mode,
            reason,
            prefilled,
            sampler,
            first,
            clock,
            memory,
        )

    def prepare(self, collection: Collection, question: str, settings: Settings, clock: PhaseClock) -> ScoringRequest:
        """Tokenise the prompt for the target, and for the draft where one may run and has other tokens."""
        pair = self.pair
        with clock.phase("tokenize"):
            text = render(self.template, collection.text, question, pair.target.tokenizer)
            prompt = encode_prompt(text, pair.target.tokenizer)
            draft_prompt = prompt
            if pair.draft is not None and needs_draft(settings) and not pair.same_tokenizer:
                text = render(self.template, collection.text, question, pair.draft.tokenizer)
                draft_prompt = encode_prompt(text, pair.draft.tokenizer)
        return ScoringRequest(
            pair=pair,
            prompt=prompt,
            draft_prompt=draft_prompt,
            document_text=collection.text,
            question=question,
            look_ahead=settings.look_ahead,
            chunk_size=settings.chunk_size,
            prefill_chunk=settings.prefill_chunk,
            seed=settings.seed,
            clock=clock,
        )

    def warm_up(self, settings: Settings) -> None:
        """Run the pair once on a short prompt, so that the first question does not pay for lazy initialisation."""
        if self.warm:
            return
        from specprefill_cli.documents.document import one_page_document

        self.warm = True
        short = Collection((one_page_document("warm-up", "The gate is open from nine to five. " * 8, "text/plain"),))
        request = self.prepare(short, "When?", settings, PhaseClock(self.pair.wait))
        for mode in MODES.values() if settings.mode == AUTO else [MODES[settings.mode]]:
            mode.prefill(request, settings)


@dataclass
class AnswerStream:
    """The answer while it is decoded: iterate for pieces of text, then call `result`."""

    session: Session
    collection: Collection
    question: str
    settings: Settings
    identifier: str
    request: ScoringRequest
    mode: str
    reason: str | None
    prefilled: Prefilled
    sampler: Callable
    first: int
    clock: PhaseClock
    memory: PeakMemory
    tokens: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    speed: DecodeSpeed = field(default_factory=DecodeSpeed)
    interrupted: bool = False

    def __iter__(self) -> Iterator[str]:
        """Pieces of text as they are decoded; interrupting it (Ctrl-C) keeps what came so far."""
        target = self.session.pair.target
        stream = TextStream(target.tokenizer)
        try:
            for token in decode(
                target.model,
                self.prefilled.state,
                self.first,
                self.request.prompt.length,
                target.stop_tokens,
                self.settings.max_new_tokens,
                self.sampler,
                self.speed,
            ):
                self.tokens.append(token)
                yield from self.emit(stream.push(token))
        except KeyboardInterrupt:
            self.interrupted = True
        yield from self.emit(stream.finish())

    def emit(self, text: str) -> Iterator[str]:
        if not self.pieces:
            # Templates end before the blank that starts the answer.
            text = text.lstrip()
        if text:
            self.pieces.append(text)
            yield text

    @property
    def draft_ran(self) -> bool:
        return needs_draft(replace(self.settings, mode=self.mode))

    def result(self) -> Answer:
        """The finished answer with all its measurements."""
        prompt, plan = self.request.prompt, self.prefilled.plan
        text = "".join(self.pieces).strip()
        pair = self.session.pair
        decoded = len(self.tokens)
        length_stop = decoded >= self.settings.max_new_tokens
        warnings = [f"{one.name}: {warning}" for one in self.collection.documents for warning in one.warnings]
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
            acceptance_rate=None,
            peak_memory_bytes=self.memory.bytes(),
            citations=cite(text, self.collection, plan, prompt.offsets, self.prefilled.importance),
            warnings=warnings,
            stopped="interrupt" if self.interrupted else "length" if length_stop else "stop",
        )


def span_records(collection: Collection, prompt: Prompt, plan: Plan) -> list[SpanRecord]:
    """The plan's spans with the pages they touch."""
    first = prompt.document[0]
    return [
        SpanRecord(
            span.start,
            span.end,
            span.fate,
            collection.pages(int(prompt.offsets[span.start - first, 0]), int(prompt.offsets[span.end - first - 1, 1])),
            span.risk,
        )
        for span in plan.spans
    ]

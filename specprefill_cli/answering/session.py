"""A loaded pair that answers questions about documents: the only place that connects the stages."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock

from specprefill_cli.answering.confidence import FILE, MOST_READ, ConfidenceModel, load_answerable, load_confidence
from specprefill_cli.answering.resolve import ResolvedQuestion, loads_draft, resolve, resolve_request, resolve_scorer
from specprefill_cli.answering.stream import AnswerStream
from specprefill_cli.decoding.proposers import check_proposer, proposer_warnings
from specprefill_cli.decoding.runner import prefill_shard
from specprefill_cli.decoding.sampling import Sampler, StopFilter
from specprefill_cli.decoding.speculation import SpeculationState
from specprefill_cli.distributed import Ranks, Shard
from specprefill_cli.distributed.launch import ranks_for
from specprefill_cli.documents.cleaning import clean_question
from specprefill_cli.documents.document import Collection, Document, one_page_document
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.loading import load_pair
from specprefill_cli.models.machine.placement import choose_placement, place_of_rank
from specprefill_cli.models.running.adapter import synchronize
from specprefill_cli.models.sources.pairs import chosen_pair, draft_folder, with_named_pair
from specprefill_cli.prefill.auto_mode import AUTOMATIC_MODES, check_context
from specprefill_cli.prefill.calibration import CalibratedPair, calibration_folder, load_heads, load_target_calibration
from specprefill_cli.prefill.intent import is_about_everything
from specprefill_cli.prefill.prefix_cache import TOKENS, DocumentCache
from specprefill_cli.prefill.registry import MODES, check_names, runs_draft
from specprefill_cli.prefill.request import EncodedQuestion, PhaseClock, PrefillRequest, PrefillResult
from specprefill_cli.prompting import Template, encode_prompt, load_template
from specprefill_cli.record import BASELINE
from specprefill_cli.settings import AUTO, Settings

# Other ranks get prompts as tokens, so the user's own template need not be on every machine.
BUILT_IN_TEMPLATE = "ask"
# The document of the warm-up, and its look-ahead in tokens.
WARM_UP = Collection((one_page_document("warm-up", "The gate is open from nine to five. " * 8),))
WARM_UP_LOOK_AHEAD = 8


def open_session(
    settings: Settings,
    draft: bool | None = None,
    target_weights: bool = True,
    calibrated: bool = True,
    ranks: Ranks | None = None,
) -> "Session":
    """Load the pair that the settings name.

    draft: overrides whether the draft is loaded; target_weights: without them, the session can only plan
    calibrated: whether to use the pair's stored calibrations
    ranks: the processes that share the models; None: those of the settings or torchrun, with this process as rank 0

    Raises SpecprefillError if a model cannot be loaded, or a calibration belongs to another model.
    """
    settings = with_named_pair(settings)
    check_names(settings)
    named_pair = chosen_pair(settings)
    template = load_template(settings.prompt or named_pair.prompt)
    with_draft = loads_draft(settings) if draft is None else draft
    ranks = ranks_for(settings.tensor_parallel) if ranks is None else ranks
    placement = choose_placement(settings.devices) if ranks.size == 1 else place_of_rank(settings.devices, ranks)
    with ranks.run_on_all_ranks(partial(open_shard, settings, calibrated)):
        pair = CalibratedPair(**vars(load_pair(named_pair, placement, settings, with_draft, target_weights, ranks)))
        if pair.draft is not None and calibrated:
            pair.scoring_heads = load_heads(draft_folder(named_pair.draft), pair.draft)
        session = Session(pair=pair, template=template, settings=settings)
        # Load it on every rank: the fingerprint of a divided model needs all ranks.
        if calibrated:
            pair.target_calibration = load_target_calibration(calibration_folder(named_pair), pair)
        if calibrated and pair.target.devices:
            session.confidence = load_confidence(calibration_folder(named_pair) / FILE, pair.loaded_target)
            # A rank holds the values of some heads only, and other prompts leave other states.
            if ranks.size == 1 and not settings.prompt:
                session.answerable = load_answerable(calibration_folder(named_pair), pair.loaded_target)
    if named_pair.draft_prompt is not None:
        session.draft_template = load_template(named_pair.draft_prompt)
    return session


def open_shard(settings: Settings, calibrated: bool, shard: Shard) -> None:
    """On another rank: load its shard of the target."""
    shard.close()
    settings = settings.varied(prompt=BUILT_IN_TEMPLATE)
    shard.session = open_session(settings, draft=False, calibrated=calibrated, ranks=shard.ranks)


@dataclass(kw_only=True)
class Session:
    """Answers questions with a loaded pair and its templates.

    draft_template: template of the draft's prompt where draft and target have different tokenizers; None: `template`
    settings: defaults for questions without settings of their own
    cache: work kept for further questions about the same documents; None: every question starts cold
    startup_seconds: from the program's start until the session was ready; set by the caller that measures it
    speculation: acceptance and costs in earlier answers; warmed: modes that have run
    single: whether one question follows: on a CPU a warm-up and its trials cost more than they save it
    confidence: gives the probability that an answer is right; None if the pair is not calibrated for it
    answerable: gives the probability that the documents state an answer, with this template
    cold_choice: whether `auto` chooses as if there were no cache; the cache then only saves work
    """

    pair: CalibratedPair
    template: Template
    draft_template: Template | None = None
    settings: Settings = field(default_factory=Settings)
    cache: DocumentCache | None = None
    startup_seconds: float = 0.0
    speculation: SpeculationState = field(default_factory=SpeculationState)
    warmed: set[str] = field(default_factory=set)
    single: bool = False
    confidence: ConfidenceModel | None = None
    answerable: ConfidenceModel | None = None
    cold_choice: bool = False

    def with_cache(self, cache: DocumentCache | None) -> "Session":
        """This session with another cache; models, warm-up and speculation stay shared."""
        return replace(self, cache=cache)

    def ask(
        self,
        documents: Collection | Sequence[Document],
        question: str,
        settings: Settings | None = None,
        opening: str = "",
    ) -> AnswerStream:
        """Prefill for a question; iterating over the stream decodes the answer.

        settings: for this question; None: the session's
        opening: text that the answer has to begin with; it ends the prompt and is not part of the answer

        Raises UsageError for an empty question or an impossible proposer, PromptTooLong if the prompt does not fit.
        """
        settings = self.settings if settings is None else settings
        collection = documents if isinstance(documents, Collection) else Collection(tuple(documents))
        check_proposer(settings, self.pair)
        self.warm_up(settings)
        prepared = self.resolve(self.encode(collection, question, settings, opening), settings)
        return self.answer(prepared, self.prefill(prepared.mode, prepared.request))

    def resolve(self, encoded: EncodedQuestion, settings: Settings) -> ResolvedQuestion:
        """Resolve the settings for a tokenised prompt. Raises PromptTooLong if it does not fit the pair."""
        prepared = resolve(settings, resolve_request(settings, self.pair, encoded, self.cache), self.cold_choice)
        if settings.confirm and prepared.mode != BASELINE:
            tokens, remedy = prepared.request.prompt.length, "leave out --confirm, or give shorter documents"
            check_context(self.pair.target, tokens, tokens, settings.max_new_tokens, remedy)
        return prepared

    def request(self, collection: Collection, question: str, settings: Settings) -> PrefillRequest:
        return resolve_request(settings, self.pair, self.encode(collection, question, settings), self.cache)

    def encode(self, collection: Collection, question: str, settings: Settings, opening: str = "") -> EncodedQuestion:
        """Start the TTFT's clock and tokenise the prompt, also for a draft that may run and has its own tokenizer."""
        question, pair, clock = clean_question(question), self.pair, PhaseClock(partial(synchronize, self.pair.devices))
        cache = DocumentCache() if self.cache is None else self.cache
        with cache.encoding.setdefault(collection.text, Lock()), clock.phase("tokenize"):
            text, tokenizer = collection.text, pair.target.tokenizer
            reused = (TOKENS,) if (tokenizer, text) in cache.encodings else ()
            template = self.template.for_whole() if is_about_everything(question) else self.template
            prompt = draft_prompt = encode_prompt(template, text, question, tokenizer, opening, cache.encode)
            runs = runs_draft(settings.mode, resolve_scorer(settings.scorer, pair, settings.mode))
            if pair.draft is not None and runs and not pair.same_tokenizer:
                template, tokenizer = self.draft_template or template, pair.loaded_draft.tokenizer
                draft_prompt = encode_prompt(template, text, question, tokenizer, opening, cache.encode)
        return EncodedQuestion(
            collection=collection,
            question=question,
            prompt=prompt,
            draft_prompt=draft_prompt,
            clock=clock,
            reused=reused,
        )

    def prefill(self, mode: str, request: PrefillRequest) -> PrefillResult:
        """Prefill a request in a mode, on every rank."""
        with self.pair.ranks.run_on_all_ranks(partial(prefill_shard, mode, request.portable())):
            return MODES[mode].prefill(request)

    def answer(
        self, prepared: ResolvedQuestion, prefilled: PrefillResult, stop_texts: Sequence[str] = ()
    ) -> AnswerStream:
        """Choose the first token; return the stream that decodes until a stop text. Raises SpecprefillError for NaN."""
        target, settings = self.pair.loaded_target, prepared.settings
        if prefilled.logits.isnan().any():
            remedy = "use --dtype bfloat16 or float32, or other weights"
            raise SpecprefillError(f"{target.name}: its logits are not numbers (NaN); {remedy}")
        sampler = Sampler(settings.temperature, settings.top_k, settings.top_p, settings.seed)
        with prepared.request.clock.phase("first_token"):
            first = sampler(prefilled.logits)
        is_fitted = prefilled.plan.kept_tokens <= MOST_READ and not is_about_everything(prepared.request.question)
        warnings = (*prefilled.warnings, *prepared.warnings)
        warnings += proposer_warnings(settings, prepared.request, prefilled.answer_position)
        return AnswerStream(
            resolved=prepared,
            prefilled=replace(prefilled, warnings=warnings),
            sampler=sampler,
            first_token=first,
            stop_tokens=target.stop_tokens,
            stop_filter=StopFilter(stop_texts),
            speculation=self.speculation,
            startup_seconds=self.startup_seconds,
            confidence=self.confidence,
            answerable_model=self.answerable if is_fitted else None,
            states=self.answerable.of_states(prefilled.state) if is_fitted and self.answerable else None,
            settings=settings,
        )

    def warm_up(self, settings: Settings) -> None:
        """Run the mode once on a short prompt, against lazy initialisation."""
        if settings.mode in self.warmed or (self.single and self.pair.target.device == "cpu"):
            return
        request = self.with_cache(None).request(WARM_UP, "When?", settings)
        request = replace(request, look_ahead=min(request.look_ahead, WARM_UP_LOOK_AHEAD), max_new_tokens=0)
        modes = AUTOMATIC_MODES if settings.mode == AUTO else (settings.mode,)
        self.warmed |= {settings.mode, *modes}
        for mode in modes:
            self.prefill(mode, request)

"""A loaded pair that answers questions about documents: the only place that strings the stages together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from specprefill_cli.answering.stream import AnswerStream
from specprefill_cli.decoding.adaptive import SpeculationMemory
from specprefill_cli.decoding.proposers import PROPOSERS
from specprefill_cli.decoding.reader import ModelReader
from specprefill_cli.decoding.sampling import Sampler
from specprefill_cli.decoding.speculation import adapts, check_proposer, draft_may_propose, proposer_cautions
from specprefill_cli.decoding.warm_up import measure_costs
from specprefill_cli.distributed.commands import OpenPair, prefill_order
from specprefill_cli.distributed.launch import ranks_for
from specprefill_cli.distributed.ranks import Ranks
from specprefill_cli.documents.cleaning import clean_question
from specprefill_cli.documents.collection import Collection
from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.models.cache import new_state
from specprefill_cli.models.calibration import calibration_folder
from specprefill_cli.models.loading import LoadedPair, load_pair
from specprefill_cli.models.memory import PeakMemory, keep_freed_memory, touch_memory
from specprefill_cli.models.pairs import BUNDLED, Pair, find_pair
from specprefill_cli.models.placement import Placement, choose_placement, place_of_rank
from specprefill_cli.models.tokenizers import encode_text
from specprefill_cli.prefill.auto_mode import (
    AUTOMATIC,
    automatic_mode,
    before_turning,
    check_fits,
    draft_window,
    needs_draft,
)
from specprefill_cli.prefill.modes.base import Prefill, Prefilled
from specprefill_cli.prefill.pass_size import pass_size
from specprefill_cli.prefill.phases import PhaseClock
from specprefill_cli.prefill.prefix_cache import TOKENS, SharedWork
from specprefill_cli.prefill.registry import MODES, SCORERS
from specprefill_cli.prefill.scorers.base import ScoringRequest
from specprefill_cli.prefill.scorers.heads import HeadsScorer
from specprefill_cli.prefill.scorers.question import QuestionScorer
from specprefill_cli.prefill.scoring_heads import load_heads
from specprefill_cli.prompting import Template, encode_prompt, load_template, render
from specprefill_cli.settings import AUTO, OFF, Settings, prompt_folder

PairLoader = Callable[[Pair, Placement, str, bool, bool, str], LoadedPair]


def check_names(settings: Settings) -> None:
    """Raises UsageError for a mode, scorer or proposer that is not registered; called before anything is loaded."""
    if settings.mode != AUTO and settings.mode not in MODES:
        raise UsageError(f"--mode {settings.mode}: unknown; use one of {', '.join([AUTO, *MODES])}")
    if settings.scorer != AUTO and settings.scorer not in SCORERS:
        raise UsageError(f"--scorer {settings.scorer}: unknown; use one of {', '.join([AUTO, *SCORERS])}")
    if settings.proposer not in (AUTO, *PROPOSERS):
        raise UsageError(f"--proposer {settings.proposer}: unknown; use one of {', '.join([AUTO, *PROPOSERS])}")


def check_settings(settings: Settings) -> None:
    """Raises SpecprefillError for settings that no session could be opened with, whatever the models are."""
    check_names(settings)
    pair = find_pair(settings.pair, settings.draft, settings.target)
    load_template(settings.prompt or pair.prompt, [prompt_folder(settings)])


def loads_draft(settings: Settings) -> bool:
    """Whether the draft is loaded: for prefill, or because it was asked by name to propose the answer's tokens."""
    return needs_draft(settings) or (settings.speculate != OFF and settings.proposer == "draft")


def open_session(
    settings: Settings,
    draft: bool | None = None,
    load: PairLoader = load_pair,
    calibrated: bool = True,
    ranks: Ranks | None = None,
) -> Session:
    """Load the pair that the settings name.

    draft: overrules whether the draft is loaded too; load: what loads the pair; `load_draft_side` suffices for a plan
    calibrated: whether stored calibrations of the pair are used
    ranks: the processes that share the target; None: those that the settings or torchrun want, of which this is rank 0

    Raises SpecprefillError when a model cannot be loaded, or when a calibration belongs to another.
    """
    check_names(settings)
    pair = find_pair(settings.pair, settings.draft, settings.target)
    template = load_template(settings.prompt or pair.prompt, [prompt_folder(settings)])
    with_draft = loads_draft(settings) if draft is None else draft
    if with_draft and pair.draft.startswith(BUNDLED) and not pair.target.startswith(BUNDLED):
        raise UsageError("--target needs a --draft that suits it; or use --mode full, or --scorer lexical")
    ranks = ranks_for(settings.tensor_parallel) if ranks is None else ranks
    placement = choose_placement(settings.devices) if ranks.size == 1 else place_of_rank(settings.devices, ranks)
    with ranks.together(OpenPair(settings, with_draft, calibrated)):
        loaded = load(pair, placement, settings.dtype, settings.offline, with_draft, settings.quantization)
        loaded.ranks = ranks
        if loaded.draft is not None and calibrated:
            loaded.scoring_heads = load_heads(calibration_folder(pair), loaded.draft)
    return Session(loaded, template)


@dataclass
class Session:
    """Answers questions with one loaded pair and one template.

    startup_seconds: time from the program's start until it could be asked; set by whoever measures it
    speculation: what its answers have taught about proposing tokens
    warmed: modes that have run
    shared: what a question leaves for the next one about the same documents; None: every question starts cold. Where
        it is set, an answer must have ended before the next question is asked
    """

    pair: LoadedPair
    template: Template
    startup_seconds: float = 0.0
    speculation: SpeculationMemory = field(default_factory=SpeculationMemory)
    shared: SharedWork | None = None
    warmed: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        keep_freed_memory()

    def ask(
        self,
        collection: Collection,
        question: str,
        settings: Settings,
        identifier: str = "",
        opening: str = "",
        strategy: Prefill | None = None,
    ) -> AnswerStream:
        """Prefill for a question; the answer's text then comes from iterating over the stream.

        opening: text that the answer is made to begin with; it becomes the prompt's end, and no part of the answer
        strategy: prefills in place of the mode that the settings name, as a control of it; settings and answer keep that
            mode's name

        Raises UsageError for an empty question or a proposer that the pair cannot have, SpecprefillError when the
        prompt does not fit the pair.
        """
        question = clean_question(question)
        settings = self.with_scorer(settings)
        check_proposer(settings, self.pair)
        self.warm_up(settings)
        memory = PeakMemory()
        clock = PhaseClock(self.pair.wait)
        request = self.prepare(collection, question, settings, clock, opening)
        mode, reason = self.choose_mode(request, settings)
        settings, cautions = before_turning(settings, request)
        # A control runs on this process alone; a mode, on every rank.
        prefilled = strategy(request, settings) if strategy else self.prefill(mode, request, settings)
        if prefilled.logits.isnan().any():
            raise SpecprefillError(
                f"{self.pair.target.name}: its logits are not numbers (NaN); use --dtype bfloat16 or float32, or other weights"
            )
        cautions = (*cautions, *proposer_cautions(settings, request))
        prefilled = replace(prefilled, warnings=(*prefilled.warnings, *cautions))
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
            self.pair.target.stop_tokens,
            clock,
            memory,
        )

    def choose_mode(self, request: ScoringRequest, settings: Settings) -> tuple[str, str | None]:
        """The mode that a prompt is prefilled in, and the reason where it was `auto` that chose it.

        Raises PromptTooLong for one that does not fit the pair in this mode.
        """
        mode, reason = automatic_mode(settings, request) if settings.mode == AUTO else (settings.mode, None)
        check_fits(request, settings, needs_draft(replace(settings, mode=mode)))
        return mode, reason

    def prefill(self, mode: str, request: ScoringRequest, settings: Settings) -> Prefilled:
        """Prefill a prompt in a mode, on every rank."""
        with self.pair.ranks.together(prefill_order(request, mode, settings)):
            return MODES[mode].prefill(request, settings)

    def with_scorer(self, settings: Settings) -> Settings:
        """The settings with `auto` replaced by the scorer that serves this pair best."""
        if settings.scorer != AUTO:
            return settings
        heads = self.pair.scoring_heads
        return replace(settings, scorer=HeadsScorer.name if heads and heads.default else QuestionScorer.name)

    def prepare(
        self, collection: Collection, question: str, settings: Settings, clock: PhaseClock, opening: str = ""
    ) -> ScoringRequest:
        """Tokenise the prompt for the target, and for the draft where one may run and has other tokens."""
        pair, shared = self.pair, self.shared
        encode = shared.documents.encode if shared is not None else encode_text
        with clock.phase("tokenize"):
            known = shared is not None and shared.documents.knows(pair.target.tokenizer, collection.text)
            text = render(self.template, collection.text, question, pair.target.tokenizer, opening)
            prompt = encode_prompt(text, pair.target.tokenizer, encode)
            draft_prompt = prompt
            if pair.draft is not None and needs_draft(settings) and not pair.same_tokenizer:
                text = render(self.template, collection.text, question, pair.draft.tokenizer, opening)
                draft_prompt = encode_prompt(text, pair.draft.tokenizer, encode)
        return ScoringRequest(
            pair=pair,
            prompt=prompt,
            draft_prompt=draft_prompt,
            document_text=collection.text,
            question=question,
            look_ahead=settings.look_ahead,
            # A chunk larger than the document is the document: nothing need be made that long.
            chunk_size=min(settings.chunk_size, max(1, prompt.document[1] - prompt.document[0])),
            prefill_chunk=pass_size(settings, pair, max(prompt.length, draft_prompt.length)),
            seed=settings.seed,
            clock=clock,
            keep_draft=draft_may_propose(settings, pair),
            draft_window=draft_window(settings, pair),
            draft_states=shared.draft if shared is not None else None,
            target_states=shared.target if shared is not None else None,
            reused=(TOKENS,) if known else (),
        )

    def warm_up(self, settings: Settings) -> None:
        """Run the pair once in this mode on a short prompt, so that no first question pays for lazy initialisation.

        On a CPU memory is mapped, too, for a longer one.

        Where the pace of speculation adapts, it is measured there what a pass over one token and over several costs.
        """
        if settings.mode in self.warmed:
            return
        settings = self.with_scorer(settings)
        settings = replace(settings, look_ahead=min(settings.look_ahead, Settings.look_ahead))
        from specprefill_cli.documents.document import one_page_document

        modes = AUTOMATIC if settings.mode == AUTO else (settings.mode,)
        self.warmed |= {settings.mode, *modes}
        short = Collection((one_page_document("warm-up", "The gate is open from nine to five. " * 8, "text/plain"),))
        request = replace(self, shared=None).prepare(short, "When?", settings, PhaseClock(self.pair.wait))
        for name in modes:
            prefilled = self.prefill(name, request, settings)
        if adapts(settings):
            length = request.prompt.length
            draft = None
            if draft_may_propose(settings, self.pair):
                draft = ModelReader(self.pair.draft.model, prefilled.draft_state or new_state(), length)
            target = ModelReader(self.pair.target.model, prefilled.state, length, self.pair.ranks)
            measure_costs(self.speculation.costs, target, draft, int(request.prompt.tokens[-1]))
        if any(device.type == "cpu" for device in self.pair.devices):
            touch_memory()

"""Makes every `auto` setting concrete for a pair and a prompt: the only place where that happens."""

from dataclasses import dataclass

from specprefill_cli.decoding.proposers import draft_may_propose, names_draft
from specprefill_cli.models.encoder import encoder_flops
from specprefill_cli.models.machine.cost import cost_of
from specprefill_cli.models.machine.memory_plan import pass_bytes, pass_size, token_bytes
from specprefill_cli.models.running.adapter import longrope_threshold
from specprefill_cli.models.sources.refs import Kind, ModelRef
from specprefill_cli.prefill.auto_mode import choose_mode
from specprefill_cli.prefill.calibration import CalibratedPair
from specprefill_cli.prefill.prefix_cache import DocumentCache, cached_tokens
from specprefill_cli.prefill.registry import MODES, SCORERS, runs_draft
from specprefill_cli.prefill.request import EncodedQuestion, PrefillRequest
from specprefill_cli.prefill.scorers.base import LexicalScorer
from specprefill_cli.prefill.scorers.heads import HeadsScorer
from specprefill_cli.prefill.scorers.meaning import BlendScorer, reads_english
from specprefill_cli.record import COMPACT, ORIGINAL, PLANNED_MODE
from specprefill_cli.settings import AUTO, Settings

# Target's operations for a token over the encoder's; from this ratio on, selecting half of the document is faster.
LARGE_TARGET = 3.0
# Longest document, in tokens, that a CPU encodes: beyond that, encoding takes longer than the target's prefill.
LONGEST_ENCODED = 65_536


def loads_draft(settings: Settings) -> bool:
    """Whether the draft is loaded: for prefill, or because the user chose it to propose tokens."""
    return runs_draft(settings.mode, settings.scorer) or names_draft(settings)


@dataclass(frozen=True, kw_only=True)
class ResolvedQuestion:
    """A question ready for prefill: settings resolved, clock running.

    mode: never `auto`; mode_reason: why `auto` chose this mode, None if the user named it
    settings: with the longest answer that is possible
    """

    request: PrefillRequest
    mode: str
    mode_reason: str | None
    settings: Settings
    warnings: tuple[str, ...]

    @property
    def kv_bytes(self) -> int:
        """Bytes of KV that the answer is expected to hold in draft and target, besides what other questions computed."""
        request, pair, answer_tokens = self.request, self.request.pair, self.settings.max_new_tokens
        kv_bytes = (MODES[self.mode].new_cache_tokens(request) + answer_tokens) * token_bytes(pair.target)
        draft_runs = runs_draft(self.mode, request.scorer) or draft_may_propose(self.settings, pair)
        if pair.draft is not None and draft_runs:
            prompt = request.draft_prompt
            cached = cached_tokens(request.draft_prefixes, pair.draft, prompt, 1, request.draft_window)
            kv_bytes += (prompt.length - cached + answer_tokens) * token_bytes(pair.draft)
        return kv_bytes

    @property
    def pass_bytes(self) -> int:
        """Bytes that the largest pass of the prompt takes besides the KV."""
        return min(self.request.prefill_chunk, self.request.prompt.length) * pass_bytes(self.request.target)


def resolve_scorer(scorer: str, pair: CalibratedPair, mode: str, document_tokens: int = 0) -> str:
    """Resolve the setting `scorer`; `auto`: the calibrated heads, alone or in `blend`, if they won, else the mode's own."""
    if scorer != AUTO:
        return scorer
    heads = pair.scoring_heads
    if heads is not None and heads.default:
        return BlendScorer.name if encoder_pays(pair, document_tokens) else HeadsScorer.name
    return LexicalScorer.name if mode == AUTO else MODES[mode].fallback_scorer


def resolve_positions(settings: Settings, pair: CalibratedPair, prompt_tokens: int) -> str:
    """Resolve the setting `positions`: `auto` is compact if calibration preferred it or the prompt exceeds the context."""
    if settings.positions != AUTO:
        return settings.positions
    calibration = pair.target_calibration
    fits = prompt_tokens <= pair.target.context - settings.max_new_tokens
    return ORIGINAL if fits and (calibration is None or calibration.positions != COMPACT) else COMPACT


def has_chooser(pair: CalibratedPair) -> bool:
    """Whether the draft is the bundled one."""
    return pair.draft is not None and ModelRef(pair.draft.name).kind is Kind.BUNDLED


def encoder_pays(pair: CalibratedPair, document_tokens: int) -> bool:
    """Whether the sentence encoder, which helps the bundled draft, is cheap compared with the target's prefill."""
    too_long = document_tokens > LONGEST_ENCODED and pair.target.device.startswith("cpu")
    is_large = cost_of(pair.target).linear_flops(1) >= LARGE_TARGET * encoder_flops(1)
    return has_chooser(pair) and not too_long and is_large


def resolve_request(
    settings: Settings, pair: CalibratedPair, encoded: EncodedQuestion, cache: DocumentCache | None = None
) -> PrefillRequest:
    """Build the request of a prompt. cache: work of earlier questions about the same documents."""
    scorer = resolve_scorer(settings.scorer, pair, settings.mode, encoded.document_tokens)
    is_auto = settings.scorer == AUTO and settings.mode in (AUTO, PLANNED_MODE)
    # The bundled draft reads English alone.
    if is_auto and scorer == HeadsScorer.name and has_chooser(pair) and not reads_english(encoded):
        scorer = LexicalScorer.name
    length = encoded.prompt.length
    return PrefillRequest(
        **vars(encoded),
        pair=pair,
        scorer=scorer,
        keep=settings.keep,
        look_ahead=settings.look_ahead,
        # A chunk is never larger than the document, so that no tensor is longer than needed.
        chunk_size=min(settings.chunk_size, max(1, encoded.document_tokens)),
        prefill_chunk=pass_size(pair, settings.prefill_chunk, max(length, encoded.draft_prompt.length)),
        draft_window=SCORERS[scorer].window(pair, settings.draft_window),
        settings=settings,
        positions=resolve_positions(settings, pair, length),
        max_new_tokens=settings.max_new_tokens,
        draft_prefixes=cache.draft if cache is not None else None,
        target_prefixes=cache.target if cache is not None else None,
    )


def resolve(settings: Settings, request: PrefillRequest, cold_choice: bool) -> ResolvedQuestion:
    """Choose mode (`auto` by a cold start's cost if `cold_choice`) and longest answer. Raises PromptTooLong."""
    mode, reason = choose_mode(settings.mode, request.without_caches() if cold_choice else request)
    max_new_tokens, warnings = cap_answer(settings.max_new_tokens, request)
    settings = settings.varied(max_new_tokens=max_new_tokens)
    return ResolvedQuestion(request=request, mode=mode, mode_reason=reason, settings=settings, warnings=warnings)


def cap_answer(max_new_tokens: int, request: PrefillRequest) -> tuple[int, tuple[str, ...]]:
    """End the answer, with a warning, where a `longrope` target would rotate all earlier keys differently."""
    target, length = request.pair.target, request.prompt.length
    threshold = longrope_threshold(target.config)
    # The target never reads the last token of an answer.
    if threshold is None or length > threshold or length + max_new_tokens - 1 <= threshold:
        return max_new_tokens, ()
    room = threshold - length + 1
    warning = (
        f"the answer may have {room} tokens: with the prompt's {length:,} it reaches {threshold:,}; beyond that "
        f"{target.name} rotates its keys differently; shorten the documents by a little for a longer answer"
    )
    return room, (warning,)

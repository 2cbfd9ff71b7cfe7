"""Makes every `auto` setting concrete for a pair and a prompt: the only place where that happens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specprefill_cli.decoding.speculation import draft_may_propose
from specprefill_cli.models.encoder import encoder_flops
from specprefill_cli.models.machine.cost import cost_of
from specprefill_cli.models.machine.memory_plan import pass_size
from specprefill_cli.models.running.adapter import longrope_threshold
from specprefill_cli.models.sources.refs import Kind, ModelRef
from specprefill_cli.prefill.registry import MODES, SCORERS, runs_draft
from specprefill_cli.prefill.request import EncodedQuestion, PrefillRequest
from specprefill_cli.prefill.scorers.blend import BlendScorer
from specprefill_cli.prefill.scorers.heads import HeadsScorer
from specprefill_cli.prefill.scorers.lexical import LexicalScorer
from specprefill_cli.record import COMPACT, ORIGINAL
from specprefill_cli.settings import AUTO, OFF, Settings

if TYPE_CHECKING:
    from specprefill_cli.prefill.calibrated_pair import CalibratedPair
    from specprefill_cli.prefill.prefix_cache import DocumentCache


# Target's operations for a token over the encoder's; from this ratio on, selecting half of the document is faster.
LARGE_TARGET = 3.0
# Longest document, in tokens, that a CPU encodes: beyond that, encoding takes longer than the target's prefill.
LONGEST_ENCODED = 65_536


def loads_draft(settings: Settings) -> bool:
    """Whether the draft is loaded: for prefill, or because the user chose it to propose tokens."""
    proposes = settings.speculate != OFF and settings.proposer == "draft"
    return runs_draft(settings.mode, settings.scorer) or proposes


@dataclass(frozen=True, kw_only=True)
class ResolvedQuestion:
    """A question ready for prefill: settings resolved, clock running.

    mode: never `auto`; mode_reason: why `auto` chose this mode, None if the user named it
    expected_speedup: over `full`, None if the cost is unknown
    decoding: the settings, with the longest answer that is possible
    """

    request: PrefillRequest
    mode: str
    mode_reason: str | None
    decoding: Settings
    warnings: tuple[str, ...]
    expected_speedup: float | None = None


def resolve_scorer(scorer: str, pair: CalibratedPair, mode: str, document_tokens: int = 0) -> str:
    """Resolve the setting `scorer` for a mode (or `auto`) and the length of the document.

    `auto` takes `blend` for the bundled draft's heads where the sentence encoder pays off; `heads` if the calibrated heads
    beat the scorers without calibration; else the mode's own scorer.
    """
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


def encoder_pays(pair: CalibratedPair, document_tokens: int) -> bool:
    """Whether the sentence encoder, which helps the bundled draft, is cheap compared with the target's prefill."""
    bundled = pair.draft is not None and ModelRef(pair.draft.name).kind is Kind.BUNDLED
    too_long = document_tokens > LONGEST_ENCODED and pair.target.device.startswith("cpu")
    return bundled and not too_long and cost_of(pair.target).linear_flops(1) >= LARGE_TARGET * encoder_flops(1)


def needs_draft_prompt(settings: Settings, pair: CalibratedPair) -> bool:
    """Whether the prompt must also be tokenised for the draft."""
    runs = runs_draft(settings.mode, resolve_scorer(settings.scorer, pair, settings.mode))
    return pair.draft is not None and runs and not pair.same_tokenizer


def resolve_request(
    settings: Settings,
    pair: CalibratedPair,
    encoded: EncodedQuestion,
    cache: DocumentCache | None = None,
) -> PrefillRequest:
    """Build the request of a prompt. cache: work of earlier questions about the same documents."""
    scorer = resolve_scorer(settings.scorer, pair, settings.mode, encoded.document_tokens)
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
        seed=settings.seed,
        positions=resolve_positions(settings, pair, length),
        max_new_tokens=settings.max_new_tokens,
        needs_draft_state=draft_may_propose(settings, pair),
        draft_prefixes=cache.draft if cache is not None else None,
        target_prefixes=cache.target if cache is not None else None,
    )


def cap_answer(max_new_tokens: int, request: PrefillRequest) -> tuple[int, tuple[str, ...]]:
    """Limit the answer to what a `longrope` target can decode without rotating the prompt's keys again; add a warning.

    Beyond its original context such a model rotates all keys differently: the whole KV cache would have to be recomputed.
    """
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

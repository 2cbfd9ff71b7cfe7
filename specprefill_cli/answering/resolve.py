"""Settings with every `auto` made concrete, for one pair and one prompt: the only place where that happens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specprefill_cli.decoding.speculation import draft_may_propose
from specprefill_cli.models.adapter import longrope_threshold
from specprefill_cli.models.cost import cost_of
from specprefill_cli.models.encoder import encoder_flops
from specprefill_cli.models.memory import PeakMemory
from specprefill_cli.models.memory_plan import MemoryPlan
from specprefill_cli.models.refs import Kind, ModelRef
from specprefill_cli.prefill.registry import MODES, SCORERS, runs_draft
from specprefill_cli.prefill.request import EncodedQuestion, PrefillRequest
from specprefill_cli.prefill.scorers.blend import BlendScorer
from specprefill_cli.prefill.scorers.heads import HeadsScorer
from specprefill_cli.prefill.scorers.lexical import LexicalScorer
from specprefill_cli.record import COMPACT, ORIGINAL
from specprefill_cli.settings import AUTO, OFF, Settings

if TYPE_CHECKING:
    from specprefill_cli.prefill.calibration import CalibratedPair
    from specprefill_cli.prefill.prefix_cache import DocumentCache


# Ratio of the target's operations for a token to the encoder's; from here on selecting half of the document is faster.
LARGE_TARGET = 3.0
# Longest document, in tokens, that a CPU encodes: encoding a longer one takes longer than reading its kept part.
LONGEST_ENCODED = 65_536


def loads_draft(settings: Settings) -> bool:
    """Whether the draft is loaded: for prefill, or because it was chosen by name to propose the answer's tokens."""
    proposes = settings.speculate != OFF and settings.proposer == "draft"
    return runs_draft(settings.mode, settings.scorer) or proposes


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A question ready for prefill: settings resolved, the clock running.

    mode: never `auto`; mode_reason: why this mode, where `auto` chose it
    expected_speedup: over `full`, None where the cost is unknown
    decoding: the settings, with the longest answer that is possible
    """

    request: PrefillRequest
    mode: str
    mode_reason: str | None
    decoding: Settings
    warnings: tuple[str, ...]
    memory: PeakMemory
    expected_speedup: float | None = None


def resolve_scorer(scorer: str, pair: CalibratedPair, mode: str, document_tokens: int = 0) -> str:
    """The scorer behind a setting of a mode (or `auto`), for a document of so many tokens.

    `auto` is `blend` for the bundled draft's heads where the sentence encoder pays, `heads` where calibration found heads
    that beat the scorers without calibration, else the scorer that the mode names.
    """
    if scorer != AUTO:
        return scorer
    heads = pair.scoring_heads
    if heads is not None and heads.default:
        return BlendScorer.name if encoder_pays(pair, document_tokens) else HeadsScorer.name
    return LexicalScorer.name if mode == AUTO else MODES[mode].fallback_scorer


def resolve_positions(settings: Settings, pair: CalibratedPair, prompt_tokens: int) -> str:
    """Where kept tokens stand: for `auto`, compact where calibration found that better, or the prompt exceeds the context."""
    if settings.positions != AUTO:
        return settings.positions
    calibration = pair.target_calibration
    fits = prompt_tokens <= pair.target.context - settings.max_new_tokens
    return ORIGINAL if fits and (calibration is None or calibration.positions != COMPACT) else COMPACT


def encoder_pays(pair: CalibratedPair, document_tokens: int) -> bool:
    """Whether the sentence encoder, with what the bundled draft lacks, takes little of a target's time for a document."""
    bundled = pair.draft is not None and ModelRef(pair.draft.name).kind is Kind.BUNDLED
    too_long = document_tokens > LONGEST_ENCODED and pair.target.device.startswith("cpu")
    return bundled and not too_long and cost_of(pair.target).linear_flops(1) >= LARGE_TARGET * encoder_flops(1)


def needs_draft_prompt(settings: Settings, pair: CalibratedPair) -> bool:
    """Whether the prompt is also needed in the draft's own tokens."""
    runs = runs_draft(settings.mode, resolve_scorer(settings.scorer, pair, settings.mode))
    return pair.draft is not None and runs and not pair.same_tokenizer


def resolve_request(
    settings: Settings,
    pair: CalibratedPair,
    encoded: EncodedQuestion,
    cache: DocumentCache | None = None,
) -> PrefillRequest:
    """The request of a prompt. cache: work of earlier questions about the same documents."""
    scorer = resolve_scorer(settings.scorer, pair, settings.mode, encoded.document_tokens)
    length = encoded.prompt.length
    return PrefillRequest(
        **vars(encoded),
        pair=pair,
        scorer=scorer,
        keep=settings.keep,
        look_ahead=settings.look_ahead,
        # A chunk larger than the document is the document: no tensor need be that long.
        chunk_size=min(settings.chunk_size, max(1, encoded.document_tokens)),
        prefill_chunk=MemoryPlan(pair).pass_size(settings.prefill_chunk, max(length, encoded.draft_prompt.length)),
        draft_window=SCORERS[scorer].window(pair, settings.draft_window),
        settings=settings,
        seed=settings.seed,
        positions=resolve_positions(settings, pair, length),
        max_new_tokens=settings.max_new_tokens,
        keep_draft_state=draft_may_propose(settings, pair),
        draft_prefixes=cache.draft if cache is not None else None,
        target_prefixes=cache.target if cache is not None else None,
    )


def cap_answer(max_new_tokens: int, request: PrefillRequest) -> tuple[int, tuple[str, ...]]:
    """The longest answer that a `longrope` target can give without rotating the prompt's keys anew, and warnings.

    Beyond its original context such a model rotates all keys differently, so that the whole cache would be recomputed.
    """
    target, length = request.pair.target, request.prompt.length
    threshold = longrope_threshold(target.config)
    # The last token of an answer is never read.
    if threshold is None or length > threshold or length + max_new_tokens - 1 <= threshold:
        return max_new_tokens, ()
    room = threshold - length + 1
    warning = (
        f"the answer may have {room} tokens: with the prompt's {length:,} it reaches {threshold:,}; beyond that "
        f"{target.name} rotates its keys differently; shorten the documents by a little for a longer answer"
    )
    return room, (warning,)

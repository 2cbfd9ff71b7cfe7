"""Modes `draft-kv` and `hybrid`: the draft's KV, mapped into the target's cache, accepted where checkpoints allow it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.adapter import rotation_depends_on_length
from specprefill_cli.models.cache import PrefillState
from specprefill_cli.models.calibration import calibration_folder
from specprefill_cli.models.raw_kv import StateCapture
from specprefill_cli.prefill.checkpoints import chunk_risks
from specprefill_cli.prefill.fates import Fate
from specprefill_cli.prefill.mapped_cache import Inspection, inspect, mapped_state, repair, without_slots
from specprefill_cli.prefill.modes.base import Prefilled
from specprefill_cli.prefill.modes.full import FullMode
from specprefill_cli.prefill.projection import Calibration, KvMap, choose_map, load_calibration, remedy
from specprefill_cli.prefill.recompute_policy import accepted_risk, int_fate, plan_of, riskiest, tokens_of, too_risky
from specprefill_cli.prefill.registry import SCORERS
from specprefill_cli.prefill.scorers import agreed_scores
from specprefill_cli.prefill.scorers.base import Scores, ScoringRequest
from specprefill_cli.prefill.selection import Selection, chunk_scores, select_scored

if TYPE_CHECKING:
    from specprefill_cli.models.loading import LoadedPair
    from specprefill_cli.settings import Settings

# In `hybrid`, KV whose error is this large a share of itself is worse than none.
USELESS_ERROR = 1.0


class DraftKvMode:
    """Every document token stays in the cache: mapped, and recomputed where risk is highest."""

    name = "draft-kv"
    uses_draft = True
    uses_keep = False

    def prefill(self, request: ScoringRequest, settings: Settings) -> Prefilled:
        checked, fates = check_and_choose(request, settings)
        if fails(request, checked.risks, fates, settings):
            scores, risks = checked.scores, checked.risks
            # Full prefill wants the memory of the mapped cache.
            del checked
            return fall_back(request, settings, scores, risks, fates)
        return recomputed(request, checked, fates)


class HybridMode:
    """Important chunks are computed, the others accepted, or dropped where their mapped KV is worse than none."""

    name = "hybrid"
    uses_draft = True
    uses_keep = True

    def prefill(self, request: ScoringRequest, settings: Settings) -> Prefilled:
        kv_map = find_map(request, settings)
        checked = map_and_check(request, settings, kv_map)
        scores, state, seen, risks = checked.scores, checked.state, checked.seen, checked.risks
        window = checked.draft_window
        # Whoever holds the mapped cache holds its memory, when full prefill or a smaller cache follows.
        del checked
        prompt, clock, size = request.prompt, request.clock, request.chunk_size

        def choose() -> tuple[Selection, Tensor]:
            # The layers up to there hold the target's own values whatever the draft says.
            errors = chunk_scores(seen.errors[kv_map.exact_layers + 1 :].mean(0), size)
            chosen = select_scored(scores, prompt, settings.keep, size)
            fates = torch.where(errors < USELESS_ERROR, int_fate(Fate.ACCEPT), int_fate(Fate.DROP))
            fates[chosen.chunks] = int_fate(Fate.RECOMPUTE)
            return chosen, fates

        with clock.phase("selection"):
            chosen, fates = request.pair.ranks.from_leader(choose)
        if fails(request, risks, fates, settings):
            del state
            return fall_back(request, settings, scores, risks, fates)
        with clock.phase("target_prefill"):
            dropped = tokens_of(fates == int_fate(Fate.DROP), size, prompt.document)
            kept = torch.ones(prompt.length, dtype=torch.bool)
            kept[dropped] = False
            # Tokens that were computed already are good whatever becomes of their chunk.
            kept[seen.computed] = True
            if not kept.all():
                state = without_slots(state, kept.nonzero()[:, 0])
            wanted = tokens_of(fates == int_fate(Fate.RECOMPUTE), size, prompt.document)
            logits = repair(request, state, torch.searchsorted(state.positions, wanted))
        plan = plan_of(request, fates, risks, seen.computed)
        warnings = (chosen.warning,) if chosen.warning else ()
        return Prefilled(
            logits, state, plan, scores.importance, warnings, scores.draft_state, (), window, scores.neighbours
        )


@dataclass(frozen=True)
class Checked:
    """A prompt scored and mapped, and what the checkpoints told: risks [chunks] before any recompute.

    draft_window: how far back the draft saw meanwhile; None: to the start
    """

    scores: Scores
    state: PrefillState
    seen: Inspection
    risks: Tensor
    draft_window: int | None


def map_and_check(request: ScoringRequest, settings: Settings, kv_map: KvMap) -> Checked:
    """Score, map, and compute head, tail and checkpoints against the mapped cache."""
    scores, state = score_and_map(request, settings, kv_map)
    with request.clock.phase("checkpoints"):
        seen = inspect(request, state, scores.importance)
        risks = request.pair.ranks.from_leader(lambda: chunk_risks(seen.mass, seen.errors, request.chunk_size))
        return Checked(scores, state, seen, risks, known_calibration(request.pair).window)


def check_and_choose(request: ScoringRequest, settings: Settings) -> tuple[Checked, Tensor]:
    """`map_and_check`, and the fates [chunks] that `riskiest` gives."""
    checked = map_and_check(request, settings, find_map(request, settings))
    with request.clock.phase("selection"):
        fates = request.pair.ranks.from_leader(
            lambda: riskiest(
                checked.risks, request.prompt.length, request.chunk_size, settings.recompute, settings.accept_risk
            )
        )
        return checked, fates


def fails(request: ScoringRequest, risks: Tensor, fates: Tensor, settings: Settings) -> bool:
    """Whether full prefill must take over, on every rank or on none."""
    return request.pair.ranks.from_leader(lambda: too_risky(risks, fates, settings.accept_risk))


def recomputed(request: ScoringRequest, checked: Checked, fates: Tensor) -> Prefilled:
    """The checked cache with the chunks of fate recompute [chunks] repaired; the others stay as mapped."""
    with request.clock.phase("target_prefill"):
        slots = tokens_of(fates == int_fate(Fate.RECOMPUTE), request.chunk_size, request.prompt.document)
        logits = repair(request, checked.state, slots)
    plan = plan_of(request, fates, checked.risks, checked.seen.computed)
    scores = checked.scores
    importance, window = scores.importance, checked.draft_window
    return Prefilled(logits, checked.state, plan, importance, (), scores.draft_state, (), window, scores.neighbours)


def score_and_map(request: ScoringRequest, settings: Settings, kv_map: KvMap) -> tuple[Scores, PrefillState]:
    """Score with the draft, keeping the states that the map reads on the way, and fill a target cache from them."""
    draft = request.pair.draft
    calibration = known_calibration(request.pair)
    with StateCapture(draft.model, kv_map.draft_layers) as capture:
        # The map reads states of all tokens, made as those it was fitted on, so the draft starts cold whatever an
        # earlier question left, and reads with the window of the calibration.
        reach = max(kv_map.draft_layers, default=0)
        reaching = replace(request, draft_reach=reach, draft_states=None, draft_window=calibration.window)
        scores = agreed_scores(reaching, settings.scorer, everywhere=True)
    with request.clock.phase("mapping"):
        length = request.prompt.length
        states = {layer: capture.states(layer, length) for layer in kv_map.draft_layers}
        state = mapped_state(request, kv_map, states)
    return scores, state


def find_map(request: ScoringRequest, settings: Settings) -> KvMap:
    """The pair's map for the wanted number of exact layers.

    Raises SpecprefillError, with the reason and the remedy, where draft KV is not possible.
    """
    pair = request.pair
    if not SCORERS[settings.scorer].uses_draft:
        raise SpecprefillError(
            f"--mode {settings.mode} needs a scorer that runs the draft, not --scorer {settings.scorer}"
        )
    if not pair.same_tokenizer:
        raise SpecprefillError(
            f"--mode {settings.mode}: {pair.draft.name} and {pair.target.name} have different tokenizers, so that one's KV "
            "cannot stand for the other's; use --mode select"
        )
    if rotation_depends_on_length(pair.target.model.config):
        raise SpecprefillError(
            f"--mode {settings.mode}: {pair.target.name}'s rotary embedding depends on the length of the prompt, which "
            "mapped keys cannot follow; use --mode select"
        )
    calibration = known_calibration(pair)
    kv_map = choose_map(list(calibration.maps.values()), settings.exact_layers) if calibration is not None else None
    if kv_map is None:
        what = f"with --exact-layers {settings.exact_layers} " if calibration is not None else ""
        raise SpecprefillError(
            f"--mode {settings.mode}: this pair has no map of draft KV {what}yet; make it with "
            f"{remedy(pair, settings.exact_layers)}"
        )
    return kv_map


def known_calibration(pair: LoadedPair) -> Calibration | None:
    """The pair's maps, read from its folder the first time; None where there are none."""
    if pair.calibration is None:
        pair.calibration = load_calibration(calibration_folder(pair.pair), pair)
    return pair.calibration


def fall_back(request: ScoringRequest, settings: Settings, scores: Scores, risks: Tensor, fates: Tensor) -> Prefilled:
    """Full prefill, with the reason as a warning."""
    prefilled = FullMode().prefill(request, settings)
    computed = float((fates == int_fate(Fate.RECOMPUTE)).float().mean())
    reason = (
        f"fell back to full prefill: with {computed:.0%} of the chunks recomputed a risk of "
        f"{accepted_risk(risks, fates):.3f} would remain, above --accept-risk {settings.accept_risk:g}"
    )
    return replace(
        prefilled,
        importance=scores.importance,
        neighbours=scores.neighbours,
        draft_state=scores.draft_state,
        draft_window=known_calibration(request.pair).window,
        warnings=(*prefilled.warnings, reason),
    )

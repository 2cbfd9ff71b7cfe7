"""Modes `draft-kv` and `hybrid`: draft KV, mapped into the target's cache, is accepted where checkpoint tokens allow it."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from specprefill_cli.draft_kv.gate import (
    ACCEPT,
    DROP,
    FATES,
    RECOMPUTE,
    RiskLimit,
    chunk_tokens,
    drop_riskiest,
    fates_by_risk,
    remaining_risk,
    risk_limit,
)
from specprefill_cli.draft_kv.mapped_cache import MappedPrompt, drop_slots, inspect, repair, score_and_map
from specprefill_cli.draft_kv.projection import find_map
from specprefill_cli.prefill.fates import Plan, fate_spans
from specprefill_cli.prefill.modes import FullMode, SelectMode
from specprefill_cli.prefill.request import Mode, PrefillRequest, PrefillResult
from specprefill_cli.prefill.selection import chunk_scores, select_scored
from specprefill_cli.record import GateVerdict

# In `hybrid`, mapped KV with a relative error above this is worse than none.
USELESS_ERROR = 1.0


@dataclass(frozen=True, kw_only=True)
class Fates:
    """The fate of every chunk [chunks], the verdict of the gate, and warnings."""

    chunks: Tensor
    gate: GateVerdict
    warnings: tuple[str, ...] = ()


class DraftKvMode(Mode):
    """Every document token stays in the cache: mapped, and recomputed where the risk is highest."""

    name = "draft-kv"
    uses_draft = True
    # The maps read the draft's states.
    fallback_scorer = "question"
    # Whether chunks above the limit of risk are dropped; else the prompt is prefilled in full.
    drops: ClassVar[bool] = False
    # The mode that prefills where nothing can be accepted.
    substitute: ClassVar[Mode] = FullMode()

    def prefill(self, request: PrefillRequest) -> PrefillResult:
        kv_map = find_map(request, self.name)
        limit = risk_limit(request.settings.accept_risk, kv_map.gate, self.share(request))
        if limit.refusal:
            # Before the draft runs: a refusal after mapping would cost more than the prefill that takes its place.
            prefilled = self.substitute.prefill(request)
            reason = f"prefilled in mode {self.substitute.name}: {limit.refusal}; accept_risk off accepts it"
            return replace(prefilled, warnings=(*prefilled.warnings, reason), gate=limit.verdict(None))
        scores, state = score_and_map(request, kv_map)
        with request.clock.phase("checkpoints"):
            mapped = inspect(request, state, scores)
        with request.clock.phase("selection"):
            fates = self.choose_fates(request, mapped, limit)
        if fates.gate.accepted or self.drops:
            prefilled = recompute_chunks(request, mapped, fates.chunks)
        else:
            # Full prefill needs the memory of the mapped cache.
            del mapped, state
            prefilled = FullMode().prefill(request)
        warnings, window = (*prefilled.warnings, *fates.warnings), kv_map.window
        return replace(prefilled, importance=scores.importance, draft_window=window, warnings=warnings, gate=fates.gate)

    def share(self, request: PrefillRequest) -> float | None:
        """The share of the prompt that is recomputed at most; None where scores decide."""
        return request.settings.recompute

    def choose_fates(self, request: PrefillRequest, mapped: MappedPrompt, limit: RiskLimit) -> Fates:
        """Recompute the riskiest chunks within the budget, accept the others if their risk is within the limit."""
        chunks = fates_by_risk(
            mapped.risks,
            prompt_tokens=request.prompt.length,
            chunk_size=request.chunk_size,
            share=request.settings.recompute,
            accept_risk=limit.threshold if limit.chosen else None,
        )
        risk = remaining_risk(mapped.risks, chunks)
        gate = limit.verdict(risk)
        if gate.accepted:
            return Fates(chunks=chunks, gate=gate)
        computed = float((chunks == RECOMPUTE).float().mean())
        reason = f"fell back to full prefill: with {computed:.0%} of the chunks recomputed {limit.reason(risk)}"
        return Fates(chunks=chunks, gate=gate, warnings=(reason,))


class HybridMode(DraftKvMode):
    """Important chunks are computed, the others accepted, or dropped where their mapped KV is too risky."""

    name = "hybrid"
    uses_keep = True
    drops = True
    substitute: ClassVar[Mode] = SelectMode()

    def share(self, request: PrefillRequest) -> float | None:
        return request.keep

    def choose_fates(self, request: PrefillRequest, mapped: MappedPrompt, limit: RiskLimit) -> Fates:
        """Recompute what `select` would keep; drop useless chunks, and the riskiest until the limit holds; accept the rest."""
        # The first layer always holds the target's own values.
        errors = chunk_scores(mapped.errors[1:].mean(0), request.chunk_size)
        selection = select_scored(request, replace(mapped.scores, whole_sentences=False, spread_limit=None))
        chunks = torch.where(errors < USELESS_ERROR, ACCEPT, DROP)
        chunks[selection.chunks] = RECOMPUTE
        risk = remaining_risk(mapped.risks, chunks)
        gate, warnings = limit.verdict(risk), selection.warnings
        if not gate.accepted:
            reduced = drop_riskiest(chunks, mapped.risks, limit.threshold)
            dropped = f"dropped {int((reduced != chunks).sum()):,} of {len(chunks):,} chunks"
            warnings += (f"{dropped}: if they were accepted too, {limit.reason(risk)}",)
            chunks = reduced
        return Fates(chunks=chunks, gate=gate, warnings=warnings)


def recompute_chunks(request: PrefillRequest, mapped: MappedPrompt, fates: Tensor) -> PrefillResult:
    """Drop and recompute chunks of the mapped cache by their fates [chunks]; the others stay as mapped."""
    prompt, size, state = request.prompt, request.chunk_size, mapped.state
    with request.clock.phase("target_prefill"):
        kept = torch.ones(prompt.length, dtype=torch.bool)
        kept[chunk_tokens(fates == DROP, size, prompt.document)] = False
        # Tokens that were computed already are exact whatever the fate of their chunk.
        kept[mapped.computed] = True
        if not kept.all():
            state = drop_slots(state, kept.nonzero()[:, 0])
        positions = chunk_tokens(fates == RECOMPUTE, size, prompt.document)
        logits = repair(request, state, torch.searchsorted(state.positions, positions))
    start, end = prompt.document
    inside = mapped.computed[(mapped.computed >= start) & (mapped.computed < end)]
    # Tokens computed outside recomputed chunks.
    checkpoints = int((fates[(inside - start) // size] != RECOMPUTE).sum())
    spans = fate_spans(fates, FATES, mapped.risks, size, prompt.document)
    return PrefillResult(logits=logits, state=state, plan=Plan(prompt.length, prompt.document, spans, checkpoints))

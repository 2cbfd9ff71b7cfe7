"""Mode `select`: the target computes the most important chunks, the rest is dropped (SpecPrefill, arXiv 2502.02789)."""

from __future__ import annotations

from torch import Tensor
from transformers import PreTrainedModel

from specprefill_cli.models.adapter import prefill
from specprefill_cli.models.cache import PrefillState
from specprefill_cli.models.cost import cost_of
from specprefill_cli.prefill.fates import GAP_SHARE, CompactPositions, Plan, shorten_gaps
from specprefill_cli.prefill.modes.base import Mode, PrefillResult
from specprefill_cli.prefill.registry import SCORERS
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.scorers.base import shared_scores
from specprefill_cli.prefill.selection import expected_tokens, select_scored, spread_warnings
from specprefill_cli.record import ORIGINAL


class SelectMode(Mode):
    """Score, select chunks, and prefill the selected ones where `--positions` says."""

    name = "select"
    uses_draft = True
    uses_keep = True
    any_length = True
    automatic = True

    def prefill(self, request: PrefillRequest) -> PrefillResult:
        scores = shared_scores(request)
        with request.clock.phase("selection"):
            # Rank 0 decides: processors that round differently could break a near-tie differently.
            selection = request.pair.ranks.from_leader(lambda: select_scored(request, scores))
        with request.clock.phase("target_prefill"):
            compact = compact_positions(request, selection.plan)
            logits, state = sparse_prefill(
                request.target.model, request.prompt.tokens, selection.plan, request.prefill_chunk, compact
            )
        return PrefillResult(
            logits=logits,
            state=state,
            plan=selection.plan,
            importance=scores.importance,
            draft_state=scores.draft_state,
            draft_window=request.draft_window if SCORERS[request.scorer].uses_draft else None,
            compact=compact,
            reused=scores.reused,
            warnings=(*selection.warnings, *spread_warnings(request, scores, selection)),
        )

    def cost(self, request: PrefillRequest) -> float:
        target = cost_of(request.pair.target).prefill_with_overhead(expected_tokens(request))
        return SCORERS[request.scorer].cost(request, with_overhead=True) + target

    def obstacle(self, request: PrefillRequest) -> str | None:
        return SCORERS[request.scorer].obstacle(request)

    def new_cache_tokens(self, request: PrefillRequest) -> int:
        return expected_tokens(request)


def compact_positions(request: PrefillRequest, plan: Plan) -> CompactPositions | None:
    """The compact positions of a plan's kept tokens; None where they stay at the original ones."""
    if request.positions == ORIGINAL:
        return None
    kept = plan.kept_positions()
    return shorten_gaps(kept, plan.prompt_tokens, min(request.answer_room, len(kept) + GAP_SHARE * len(kept)))


def sparse_prefill(
    model: PreTrainedModel, tokens: Tensor, plan: Plan, chunk: int, compact: CompactPositions | None = None
) -> tuple[Tensor, PrefillState]:
    """Run the target over kept tokens: logits [V] of the last one, and their cache.

    tokens: [M] the whole prompt; compact: where they stand, None for original positions, with which decoding goes on at
    position M, whatever was dropped
    """
    kept = plan.kept_positions()
    return prefill(model, tokens[kept], kept if compact is None else compact.positions, chunk)

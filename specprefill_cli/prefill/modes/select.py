"""Mode `select`: the target computes the most important chunks and the rest is dropped (arXiv 2502.02789)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specprefill_cli.prefill.modes.base import Prefilled
from specprefill_cli.prefill.registry import SCORERS
from specprefill_cli.prefill.scorers import agreed_scores
from specprefill_cli.prefill.scorers.base import ScoringRequest
from specprefill_cli.prefill.selection import select_scored
from specprefill_cli.prefill.sparse import sparse_prefill

if TYPE_CHECKING:
    from specprefill_cli.settings import Settings


class SelectMode:
    """Score, choose chunks, prefill what was chosen at its original positions."""

    name = "select"
    uses_draft = True
    uses_keep = True

    def prefill(self, request: ScoringRequest, settings: Settings) -> Prefilled:
        scores = agreed_scores(request, settings.scorer)
        prompt, clock, ranks = request.prompt, request.clock, request.pair.ranks
        with clock.phase("selection"):
            # Processors that round otherwise could break a near-tie otherwise.
            chosen = ranks.from_leader(lambda: select_scored(scores, prompt, settings.keep, request.chunk_size))
        with clock.phase("target_prefill"):
            logits, state = sparse_prefill(request.pair.target.model, prompt.tokens, chosen.plan, request.prefill_chunk)
        warnings = (chosen.warning,) if chosen.warning else ()
        return Prefilled(
            logits,
            state,
            chosen.plan,
            scores.importance,
            warnings,
            scores.draft_state,
            scores.reused,
            request.draft_window if SCORERS[settings.scorer].uses_draft else None,
            scores.neighbours,
        )

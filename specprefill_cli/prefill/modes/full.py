"""Mode `full`: plain prefill of the whole prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specprefill_cli.prefill.modes.base import Prefilled
from specprefill_cli.prefill.plan import full_plan
from specprefill_cli.prefill.scorers.base import ScoringRequest
from specprefill_cli.prefill.sparse import sparse_prefill

if TYPE_CHECKING:
    from specprefill_cli.settings import Settings


class FullMode:
    """Every token is computed by the target."""

    name = "full"
    speculative = False

    def prefill(self, request: ScoringRequest, settings: Settings) -> Prefilled:
        plan = full_plan(request.prompt.length, request.prompt.document)
        with request.clock.phase("target_prefill"):
            logits, state = sparse_prefill(
                request.pair.target.model, request.prompt.tokens, plan, settings.prefill_chunk
            )
        return Prefilled(logits, state, plan)

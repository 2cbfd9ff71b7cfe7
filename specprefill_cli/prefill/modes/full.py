"""Mode `full`: plain prefill of the whole prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from specprefill_cli.models.adapter import prefill
from specprefill_cli.prefill.fates import full_plan
from specprefill_cli.prefill.modes.base import Prefilled
from specprefill_cli.prefill.prefix_cache import TARGET_STATE, open_state
from specprefill_cli.prefill.scorers.base import ScoringRequest

if TYPE_CHECKING:
    from specprefill_cli.settings import Settings


class FullMode:
    """Every token is computed by the target."""

    name = "full"
    uses_draft = False
    uses_keep = False

    def prefill(self, request: ScoringRequest, settings: Settings) -> Prefilled:
        plan = full_plan(request.prompt.length, request.prompt.document)
        target, prompt = request.pair.target, request.prompt
        with request.clock.phase("target_prefill"):
            state, keep = open_state(
                request.target_states, target, prompt, target.config.get_text_config().num_hidden_layers
            )
            done = state.length
            logits, _ = prefill(
                target.model,
                prompt.tokens[done:],
                torch.arange(done, prompt.length),
                request.prefill_chunk,
                state=state,
            )
            keep()
        return Prefilled(logits, state, plan, reused=(TARGET_STATE,) if done else ())

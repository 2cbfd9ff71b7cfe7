"""Mode `full`: plain prefill of the whole prompt."""

from __future__ import annotations

import torch

from specprefill_cli.models.adapter import prefill
from specprefill_cli.models.cache import layer_count
from specprefill_cli.models.cost import cost_of
from specprefill_cli.prefill.fates import full_plan
from specprefill_cli.prefill.modes.base import Mode, PrefillResult
from specprefill_cli.prefill.prefix_cache import TARGET_PREFIX, cached_tokens, open_prefix
from specprefill_cli.prefill.request import PrefillRequest


class FullMode(Mode):
    """The target computes every token."""

    name = "full"

    def prefill(self, request: PrefillRequest) -> PrefillResult:
        target, prompt = request.target, request.prompt
        with request.clock.phase("target_prefill"):
            state, keep = open_prefix(request.target_prefixes, target, prompt, layer_count(target.model))
            cached = state.length
            positions = torch.arange(cached, prompt.length)
            logits, _ = prefill(target.model, prompt.tokens[cached:], positions, request.prefill_chunk, state=state)
            keep()
        plan = full_plan(prompt.length, prompt.document)
        return PrefillResult(logits=logits, state=state, plan=plan, reused=(TARGET_PREFIX,) if cached else ())

    def cost(self, request: PrefillRequest) -> float:
        new = self.new_cache_tokens(request)
        return cost_of(request.pair.target).prefill_with_overhead(new, past=request.prompt.length - new)

    def new_cache_tokens(self, request: PrefillRequest) -> int:
        target, prompt = request.pair.target, request.prompt
        return prompt.length - cached_tokens(request.target_prefixes, target, prompt, cost_of(target).layers)

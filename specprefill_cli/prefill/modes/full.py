"""Mode `full`: plain prefill of the whole prompt."""

from __future__ import annotations

import torch

from specprefill_cli.models.adapter import prefill_steps, run_steps
from specprefill_cli.models.cache import layer_count
from specprefill_cli.models.cost import cost_of
from specprefill_cli.models.passes import Steps, pause_before_pass
from specprefill_cli.prefill.fates import full_plan
from specprefill_cli.prefill.modes.base import Mode, PrefillResult
from specprefill_cli.prefill.prefix_cache import TARGET_PREFIX, cached_tokens, open_prefix
from specprefill_cli.prefill.request import PrefillRequest


class FullMode(Mode):
    """The target computes every token."""

    name = "full"

    def prefill(self, request: PrefillRequest) -> PrefillResult:
        with request.clock.phase("target_prefill"):
            return run_steps(full_steps(request, request.prefill_chunk), pause_before_pass)

    def cost(self, request: PrefillRequest) -> float:
        new = self.new_cache_tokens(request)
        return cost_of(request.pair.target).prefill_with_overhead(new, past=request.prompt.length - new)

    def new_cache_tokens(self, request: PrefillRequest) -> int:
        target, prompt = request.pair.target, request.prompt
        return prompt.length - cached_tokens(request.target_prefixes, target, prompt, cost_of(target).layers)


def full_steps(request: PrefillRequest, chunk: int) -> Steps[PrefillResult]:
    """Ask for the passes of plain prefill, `chunk` tokens each; the KV of prefix and document goes into the request's cache."""
    target, prompt = request.target, request.prompt
    state, keep = open_prefix(request.target_prefixes, target, prompt, layer_count(target.model))
    cached = state.length
    positions = torch.arange(cached, prompt.length)
    logits = yield from prefill_steps(target.model, prompt.tokens[cached:], positions, chunk, state)
    keep()
    plan = full_plan(prompt.length, prompt.document)
    return PrefillResult(logits=logits, state=state, plan=plan, reused=(TARGET_PREFIX,) if cached else ())

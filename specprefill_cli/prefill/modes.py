"""The modes `full` and `select` (SpecPrefill, arXiv 2502.02789)."""

import torch

from specprefill_cli.models.machine.cost import cost_of
from specprefill_cli.models.running.adapter import prefill
from specprefill_cli.models.running.cache import layer_count
from specprefill_cli.prefill.fates import GAP_SHARE, full_plan, shorten_gaps
from specprefill_cli.prefill.prefix_cache import TARGET_PREFIX, cached_tokens, open_prefix
from specprefill_cli.prefill.registry import SCORERS
from specprefill_cli.prefill.request import Mode, PrefillRequest, PrefillResult
from specprefill_cli.prefill.scorers.base import Scores
from specprefill_cli.prefill.selection import Selection, expected_tokens, select_scored
from specprefill_cli.record import ORIGINAL


class FullMode(Mode):
    """The target computes every token."""

    name = "full"

    def prefill(self, request: PrefillRequest) -> PrefillResult:
        target, prompt = request.target, request.prompt
        with request.clock.phase("target_prefill"):
            state, store_prefix = open_prefix(request.target_prefixes, target, prompt, layer_count(target.model))
            cached = state.length
            positions = torch.arange(cached, prompt.length)
            logits, _ = prefill(target.model, prompt.tokens[cached:], positions, request.prefill_chunk, state)
            store_prefix()
        plan = full_plan(prompt.length, prompt.document)
        reused = (TARGET_PREFIX,) if cached else ()
        return PrefillResult(logits=logits, state=state, plan=plan, reused=reused, cached_tokens=cached)

    def cost(self, request: PrefillRequest) -> float:
        new = self.new_cache_tokens(request)
        return cost_of(request.pair.target).prefill_with_overhead(new, past=request.prompt.length - new)

    def new_cache_tokens(self, request: PrefillRequest) -> int:
        target, prompt = request.pair.target, request.prompt
        return prompt.length - cached_tokens(request.target_prefixes, target, prompt, cost_of(target).layers)


class SelectMode(Mode):
    """Score, select chunks, and prefill the selected chunks at the positions of `--positions`."""

    name = "select"
    uses_draft = True
    uses_keep = True

    def prefill(self, request: PrefillRequest) -> PrefillResult:
        def choose() -> tuple[Scores, Selection]:
            scores = SCORERS[request.scorer].score(request)
            with request.clock.phase("selection"):
                return scores, select_scored(request, scores)

        # Rank 0 alone has the draft, and decides: other processors could break a near-tie differently.
        scores, selection = request.pair.ranks.compute_on_rank_0(choose)
        with request.clock.phase("target_prefill"):
            compact, kept = None, selection.plan.kept_positions()
            if request.positions != ORIGINAL:
                room = min(request.prompt_room, (1 + GAP_SHARE) * len(kept))
                compact = shorten_gaps(kept, request.prompt.length, room)
            tokens, positions = request.prompt.tokens[kept], kept if compact is None else compact.positions
            logits, state = prefill(request.target.model, tokens, positions, request.prefill_chunk)
        return PrefillResult(
            logits=logits,
            state=state,
            plan=selection.plan,
            importance=scores.importance,
            draft_window=request.draft_window if request.clock.draft_ran else None,
            compact=compact,
            reused=scores.reused,
            warnings=selection.warnings,
        )

    def cost(self, request: PrefillRequest) -> float:
        target = cost_of(request.pair.target).prefill_with_overhead(expected_tokens(request))
        return SCORERS[request.scorer].cost(request, with_overhead=True) + target

    def new_cache_tokens(self, request: PrefillRequest) -> int:
        return expected_tokens(request)

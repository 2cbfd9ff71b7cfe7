"""The interface of modes, their result, and the modes `full` and `select` (SpecPrefill, arXiv 2502.02789)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specprefill_cli.models.adapter import prefill, prefill_steps, run_steps
from specprefill_cli.models.cache import KvCacheState, layer_count
from specprefill_cli.models.cost import cost_of
from specprefill_cli.models.passes import ForwardGenerator, pause_before_pass
from specprefill_cli.prefill.fates import GAP_SHARE, CompactPositions, Plan, full_plan, shorten_gaps
from specprefill_cli.prefill.prefix_cache import TARGET_PREFIX, cached_tokens, open_prefix
from specprefill_cli.prefill.registry import SCORERS
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.scorers.base import shared_scores
from specprefill_cli.prefill.selection import expected_tokens, select_scored, spread_warnings
from specprefill_cli.record import ORIGINAL, GateVerdict


@dataclass(frozen=True, kw_only=True)
class PrefillResult:
    """The target after prefill.

    logits: [V] of the last prompt token; importance: [n] of the document's tokens, where they were scored
    draft_state: the draft's cache of the whole prompt, where the draft ran and decoding needs it
    draft_window: previous tokens that a document token saw in the draft; None: all of them, or no draft ran
    compact: where the target computed kept tokens; None: at their original positions
    reused: cached work of earlier questions that it used, in words; cached_tokens: tokens whose target KV was cached
    gate: whether the risk that remains in accepted draft KV was small enough; None without draft KV
    """

    logits: Tensor
    state: KvCacheState
    plan: Plan
    importance: Tensor | None = None
    draft_state: KvCacheState | None = None
    draft_window: int | None = None
    compact: CompactPositions | None = None
    reused: tuple[str, ...] = ()
    cached_tokens: int = 0
    warnings: tuple[str, ...] = ()
    gate: GateVerdict | None = None

    @property
    def answer_position(self) -> int:
        """Position of the answer's first token."""
        return self.plan.prompt_tokens if self.compact is None else self.compact.end

    @property
    def seen_tokens(self) -> Tensor:
        """Indices in the prompt, ascending, of the tokens in the target's cache."""
        return self.state.positions if self.compact is None else self.compact.tokens


class Mode(ABC):
    """A way to prefill a prompt, registered by `name` in `prefill/registry.py` or by a plugin.

    uses_draft: whether it scores the document, and so may run the draft; uses_keep: whether `--keep` matters
    fallback_scorer: choice of `--scorer auto` where the draft has no calibrated heads
    any_length: whether it takes prompts longer than the target's context
    automatic: whether `--mode auto` may take it, where `cost` promises a gain over `full`
    """

    name: ClassVar[str]
    uses_draft: ClassVar[bool] = False
    uses_keep: ClassVar[bool] = False
    fallback_scorer: ClassVar[str] = "lexical"
    any_length: ClassVar[bool] = False
    automatic: ClassVar[bool] = False

    @abstractmethod
    def prefill(self, request: PrefillRequest) -> PrefillResult:
        """Prefill the target. Raises SpecprefillError where the pair does not allow this mode."""

    def cost(self, request: PrefillRequest) -> float | None:
        """Expected FLOPs of the prefill, with the fixed costs of passes and without cached tokens; None: unknown."""
        return None

    def obstacle(self, request: PrefillRequest) -> str | None:
        """Why `--mode auto` cannot take this mode for a prompt, or None."""
        return None

    def new_cache_tokens(self, request: PrefillRequest) -> int:
        """Count the prompt tokens that the target's cache will hold and no earlier question left there."""
        return request.prompt.length


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


def full_steps(request: PrefillRequest, pass_size: int) -> ForwardGenerator[PrefillResult]:
    """Ask for the passes of plain prefill, `pass_size` tokens each; store the document's KV in the request's cache."""
    target, prompt = request.target, request.prompt
    state, store_prefix = open_prefix(request.target_prefixes, target, prompt, layer_count(target.model))
    cached = state.length
    positions = torch.arange(cached, prompt.length)
    logits = yield from prefill_steps(target.model, prompt.tokens[cached:], positions, pass_size, state)
    store_prefix()
    plan = full_plan(prompt.length, prompt.document)
    reused = (TARGET_PREFIX,) if cached else ()
    return PrefillResult(logits=logits, state=state, plan=plan, reused=reused, cached_tokens=cached)


class SelectMode(Mode):
    """Score, select chunks, and prefill the selected chunks at the positions of `--positions`."""

    name = "select"
    uses_draft = True
    uses_keep = True
    any_length = True
    automatic = True

    def prefill(self, request: PrefillRequest) -> PrefillResult:
        scores = shared_scores(request)
        with request.clock.phase("selection"):
            # Rank 0 decides: processors that round differently could break a near-tie differently.
            selection = request.pair.ranks.compute_on_rank_0(lambda: select_scored(request, scores))
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
    """The compact positions of a plan's kept tokens; None where they keep their original positions."""
    if request.positions == ORIGINAL:
        return None
    kept = plan.kept_positions()
    return shorten_gaps(kept, plan.prompt_tokens, min(request.prompt_room, len(kept) + GAP_SHARE * len(kept)))


def sparse_prefill(
    model: PreTrainedModel, tokens: Tensor, plan: Plan, pass_size: int, compact: CompactPositions | None = None
) -> tuple[Tensor, KvCacheState]:
    """Run the target over kept tokens; return the logits [V] of the last token, and their cache.

    tokens: [M] the whole prompt; compact: positions of the kept tokens; None: their original positions; decoding then
    goes on at position M, whatever was dropped
    """
    kept = plan.kept_positions()
    return prefill(model, tokens[kept], kept if compact is None else compact.positions, pass_size)

"""Scorer `heads`: only the draft's attention heads that calibration found to point at answers, mixed with BM25.

The draft runs no layer above them, and does not look ahead.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.adapter import window_layers
from specprefill_cli.models.cache import PrefillState
from specprefill_cli.models.query_capture import QueryCapture
from specprefill_cli.prefill.calibration import CalibratedPair
from specprefill_cli.prefill.importance import usable_layers
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.scorers.attention import AttentionScorer
from specprefill_cli.prefill.scorers.base import NEIGHBOURS, AutoBudget
from specprefill_cli.prefill.scorers.lexical import lexical_importance
from specprefill_cli.prefill.scoring_heads import REMEDY, Head, ScoringHeads, blend, head_importance
from specprefill_cli.prompting import Prompt
from specprefill_cli.settings import AUTO


class HeadsScorer(AttentionScorer):
    """Queries are the question's tokens and the prompt's last token, which predicts the answer's first."""

    name = "heads"
    looks_ahead = False
    neighbours = NEIGHBOURS
    pools_prompt = False
    spread_limit = 0.58

    def query_tokens(self, prompt: Prompt) -> Tensor:
        return torch.tensor(sorted({*range(*prompt.question), prompt.length - 1}))

    def layers(self, request: PrefillRequest) -> Sequence[int]:
        """Layers of the scoring heads. Raises SpecprefillError where none are known, or none sees the whole prompt."""
        draft, length = request.draft, request.draft_reach
        usable = usable_layers(window_layers(draft.config), length)
        layers = sorted({head.layer for head in known_heads(request).heads if head.layer in usable})
        if not layers:
            raise SpecprefillError(
                f"--scorer heads: the layers of draft {draft.name} that hold its scoring heads attend to a window shorter "
                f"than this prompt of {length} tokens; use --scorer question"
            )
        return layers

    def reduce(
        self,
        request: PrefillRequest,
        state: PrefillState,
        capture: QueryCapture,
        layers: Sequence[int],
    ) -> Tensor:
        heads = chosen_heads(request, layers)
        return head_importance(state, capture, request.draft_prompt.document, heads, request.draft_share)

    def used_heads(self, request: PrefillRequest, layers: Sequence[int]) -> dict[int, Sequence[int]]:
        first, heads = request.draft_share.queries.start, own_heads(request, layers)
        return {layer: [head.head - first for head in heads if head.layer == layer] for layer in layers}

    def reduce_heads(self, request: PrefillRequest, layers: Sequence[int], attention: Tensor) -> Tensor:
        weights = torch.tensor([head.weight for head in own_heads(request, layers)])
        return request.draft_share.ranks.summed((weights[:, None] * attention.mean(1)).sum(0))

    def finish(self, request: PrefillRequest, importance: Tensor) -> Tensor:
        weight = known_heads(request).lexical
        return blend(importance, lexical_importance(request), weight) if weight else importance

    def auto_budget(self, request: PrefillRequest) -> AutoBudget:
        own = request.pair.target_calibration
        if own is not None and own.auto_mass is not None:
            return AutoBudget(share=own.auto_mass, tokens=own.auto_tokens)
        return self.general_budget(request)

    def general_budget(self, request: PrefillRequest) -> AutoBudget:
        """What `--keep auto` keeps where the target has no calibration of its own."""
        heads = known_heads(request)
        return AutoBudget(share=heads.auto_mass, tokens=heads.auto_tokens)

    def window(self, pair: CalibratedPair, setting: str | int) -> int | None:
        """`auto` is the window with which the heads were found to work as well."""
        if setting == AUTO and pair.scoring_heads is not None:
            return pair.scoring_heads.window
        return super().window(pair, setting)


def chosen_heads(request: PrefillRequest, layers: Sequence[int]) -> tuple[Head, ...]:
    """The scoring heads in some layers, by layer and number."""
    heads = (head for head in known_heads(request).heads if head.layer in layers)
    return tuple(sorted(heads, key=lambda head: (head.layer, head.head)))


def own_heads(request: PrefillRequest, layers: Sequence[int]) -> list[Head]:
    """As `chosen_heads`, of those that this rank holds."""
    return [head for head in chosen_heads(request, layers) if head.head in request.draft_share.queries]


def known_heads(request: PrefillRequest) -> ScoringHeads:
    """The pair's scoring heads. Raises SpecprefillError where there are none."""
    heads = request.pair.scoring_heads
    if heads is None:
        raise SpecprefillError(
            f"--scorer heads: no heads are known for draft {request.draft.name}; find them with {REMEDY}"
        )
    return heads

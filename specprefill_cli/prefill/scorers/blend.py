"""Scorer `blend`: the draft's scoring heads and the sentence encoder together.

The heads find what a question says in the document's words, the encoder what it says in other words: the more of its words
stand together in one place, the more the heads count.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.scorers.base import AutoBudget, Scores
from specprefill_cli.prefill.scorers.embedding import VECTORS, embedding_flops, embedding_importance, has_vectors
from specprefill_cli.prefill.scorers.heads import HeadsScorer
from specprefill_cli.prefill.scoring_heads import blend
from specprefill_cli.prefill.words import coverage

# Weight of the heads with BM25, against 1 for the encoder, where a place holds all of the question's words.
HEADS_WEIGHT = 3.0
# With it, questions in a document's words keep a tenth of some 4,000 tokens, others a sixth.
AUTO_BUDGET = AutoBudget(share=0.6, tokens=2_048)


class BlendScorer(HeadsScorer):
    """The importance that `heads` gives, and beside it that of `embedding`."""

    name = "blend"

    def score(self, request: PrefillRequest) -> Scores:
        known = has_vectors(request)
        scores = super().score(request)
        return replace(scores, reused=(*scores.reused, VECTORS)) if known else scores

    def finish(self, request: PrefillRequest, importance: Tensor) -> Tensor:
        offsets = request.prompt.offsets
        if not len(offsets):
            return importance
        starts, end = offsets[:: request.chunk_size, 0], int(offsets[-1, 1])
        weight = HEADS_WEIGHT * coverage(request.question, request.document_text, starts, end)
        return blend(embedding_importance(request), super().finish(request, importance), weight)

    def auto_budget(self, request: PrefillRequest) -> AutoBudget:
        own = request.pair.target_calibration
        if own is not None and own.auto_mass is not None:
            return AutoBudget(share=own.auto_mass, tokens=own.auto_tokens)
        return AUTO_BUDGET

    def cost(self, request: PrefillRequest, with_overhead: bool = False) -> float:
        return super().cost(request, with_overhead) + embedding_flops(request)

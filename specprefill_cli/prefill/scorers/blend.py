"""Scorer `blend`: the draft's scoring heads and the sentence encoder together.

The heads find what a question says in the document's words, the encoder what it says in other words: the more of its words
stand together, the more the heads count.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from specprefill_cli.prefill.bm25 import coverage
from specprefill_cli.prefill.identifiers import hold_rare_identifier
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.scorers.base import AutoBudget, Scores
from specprefill_cli.prefill.scorers.embedding import VECTORS, embedding_flops, embedding_importance, has_vectors
from specprefill_cli.prefill.scorers.heads import HeadsScorer
from specprefill_cli.prefill.scoring_heads import blend

# Weight of the heads with BM25, against 1 for the encoder, where a place holds all of the question's words.
HEADS_WEIGHT = 2.0
# With it, questions in a document's words keep a sixteenth of some 4,000 tokens, others an eighth.
AUTO_BUDGET = AutoBudget(share=0.6, tokens=2_048)


class BlendScorer(HeadsScorer):
    """The importance of `heads` mixed with that of `embedding`."""

    name = "blend"

    def score(self, request: PrefillRequest) -> Scores:
        cached = has_vectors(request)
        scores = replace(super().score(request), whole_sentences=True)
        return replace(scores, reused=(*scores.reused, VECTORS)) if cached else scores

    def finish(self, request: PrefillRequest, importance: Tensor) -> Tensor:
        by_heads = super().finish(request, importance)
        if not len(by_heads):
            return by_heads
        mixed = blend(embedding_importance(request), by_heads, HEADS_WEIGHT * question_coverage(request))
        return with_identifiers(request, mixed)

    def general_budget(self, request: PrefillRequest) -> AutoBudget:
        return AUTO_BUDGET

    def cost(self, request: PrefillRequest, with_overhead: bool = False) -> float:
        return super().cost(request, with_overhead) + embedding_flops(request)


def with_identifiers(request: PrefillRequest, importance: Tensor) -> Tensor:
    """Importance [n] that ranks the chunks with a rare identifier of the question first: `B077` and `B078` mean the same."""
    size = request.chunk_size
    starts = request.prompt.offsets[::size, 0]
    holds = torch.from_numpy(hold_rare_identifier(request.question, request.document_text, starts)).float()
    best = importance.topk(min(size, len(importance))).values.mean()
    return importance + (holds * best).repeat_interleave(size)[: len(importance)]


def question_coverage(request: PrefillRequest) -> float:
    """How much of the question a place of the documents says in the same words: 0 to 1."""
    offsets = request.prompt.offsets
    starts, end = offsets[:: request.chunk_size, 0], int(offsets[-1, 1])
    return coverage(request.question, request.document_text, starts, end)

"""Scorer `blend`: the draft's scoring heads and the sentence encoder together.

The heads find what a question says in the document's words, the encoder what it says in other words: the more of its words
stand together, the more the heads count. A document in another language than English is compared word by word in English,
and by its own words; the bundled draft, which reads English alone, does not run.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from specprefill_cli.documents.language import ENGLISH, language_of
from specprefill_cli.prefill.bm25 import coverage, word_scores
from specprefill_cli.prefill.identifiers import hold_rare_identifier
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.scorers.base import AutoBudget, Scores
from specprefill_cli.prefill.scorers.embedding import (
    VECTORS,
    embedding_flops,
    embedding_importance,
    english_of,
    has_vectors,
)
from specprefill_cli.prefill.scorers.heads import HeadsScorer
from specprefill_cli.prefill.scorers.lexical import lexical_importance
from specprefill_cli.prefill.scoring_heads import blend, to_distribution

# Weight of the heads with BM25, against 1 for the encoder, where a place holds all of the question's words.
HEADS_WEIGHT = 2.0
# With it, questions in a document's words keep a sixteenth of some 4,000 tokens, others an eighth.
AUTO_BUDGET = AutoBudget(share=0.6, tokens=2_048)
WEAK = "the documents' language ({language}) has no glossary: chosen by words alone, and --keep auto keeps more"
# For other languages than English, where the choice is less sure; with it, an eighth of some 3,000 tokens is kept.
FOREIGN_BUDGET = AutoBudget(share=0.7, tokens=2_048)
# For languages without a glossary, in which the choice is by words alone.
WEAK_BUDGET = AutoBudget(share=0.8, tokens=4_096)


class BlendScorer(HeadsScorer):
    """The importance of `heads` mixed with that of `embedding`."""

    name = "blend"

    def score(self, request: PrefillRequest) -> Scores:
        cached = has_vectors(request)
        language = language_of(request.document_text)
        scores = super().score(request) if language == ENGLISH else self.score_foreign(request, language)
        scores = replace(scores, whole_sentences=True)
        return replace(scores, reused=(*scores.reused, VECTORS)) if cached else scores

    def score_foreign(self, request: PrefillRequest, language: str) -> Scores:
        """The scores of a document that is not in English, without the draft."""
        with request.clock.phase("scoring"):
            importance = foreign_importance(request)
            if len(importance):
                importance = with_identifiers(request, importance)
            scores = Scores(importance=importance, neighbours=self.neighbours)
        if english_of(request)[0] is not None:
            return replace(scores, auto_budget=FOREIGN_BUDGET)
        return replace(scores, auto_budget=WEAK_BUDGET, warnings=(WEAK.format(language=language),))

    def finish(self, request: PrefillRequest, importance: Tensor) -> Tensor:
        by_heads = super().finish(request, importance)
        if not len(by_heads):
            return by_heads
        mixed = blend(embedding_importance(request), by_heads, HEADS_WEIGHT * question_coverage(request))
        return with_identifiers(request, mixed)

    def general_budget(self, request: PrefillRequest) -> AutoBudget:
        return AUTO_BUDGET

    def cost(self, request: PrefillRequest, with_overhead: bool = False) -> float:
        by_heads = super().cost(request, with_overhead) if language_of(request.document_text) == ENGLISH else 0.0
        return by_heads + embedding_flops(request)


def foreign_importance(request: PrefillRequest) -> Tensor:
    """Importance [n] of a document's tokens by meaning, by its own words, and by their English."""
    offsets, size = request.prompt.offsets, request.chunk_size
    importance = embedding_importance(request)
    if not len(offsets):
        return importance
    importance = blend(importance, lexical_importance(request), question_coverage(request))
    english, question = english_of(request)
    if english is None:
        return importance
    passages = question, english.text, english.starts(offsets[::size, 0]), len(english.text), ENGLISH
    words = torch.from_numpy(word_scores(*passages)).float().repeat_interleave(size)[: len(offsets)]
    return importance + coverage(*passages) * to_distribution(words)


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

"""Scorers without a model: `lexical`, BM25 of the question's stems over the document's chunks, and the control `random`."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from specprefill_cli.prefill.bm25 import word_scores
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.scorers.base import NEIGHBOURS, Scorer, Scores


class LexicalScorer(Scorer):
    """Okapi BM25 with k1 = 1.2 and b = 0.75, over chunks."""

    name = "lexical"

    def score(self, request: PrefillRequest) -> Scores:
        with request.clock.phase("scoring"):
            return Scores(importance=lexical_importance(request), neighbours=NEIGHBOURS)


def lexical_importance(request: PrefillRequest) -> Tensor:
    """BM25 of each document token's chunk, in the target's tokens: [n], float32."""
    starts = request.chunk_starts
    return (
        request.of_tokens(word_scores(request.question, request.document_text, starts))
        if len(starts)
        else torch.zeros(0)
    )


class RandomScorer(Scorer):
    """Uniform scores, a score for each chunk, from the request's seed: the control that every other scorer must beat."""

    name = "random"

    def score(self, request: PrefillRequest) -> Scores:
        with request.clock.phase("scoring"):
            tokens, size = request.document_tokens, request.chunk_size
            generator = torch.Generator().manual_seed(question_seed(request))
            chunks = torch.rand(-(-tokens // size), generator=generator)
            return Scores(importance=chunks.repeat_interleave(size)[:tokens])


def question_seed(request: PrefillRequest) -> int:
    """The question's own seed, so that questions about the same document do not all get the same chunks."""
    return request.seed ^ zlib.crc32(request.question.encode("utf-8", "replace"))

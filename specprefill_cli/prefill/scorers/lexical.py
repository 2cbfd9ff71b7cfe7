"""Scorer `lexical`: BM25 of the question's stems over the document's chunks; needs no draft."""

from __future__ import annotations

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
    offsets, size = request.prompt.offsets, request.chunk_size
    if not len(offsets):
        return torch.zeros(0)
    scores = word_scores(request.question, request.document_text, offsets[::size, 0], int(offsets[-1, 1]))
    return torch.from_numpy(scores).float().repeat_interleave(size)[: len(offsets)]

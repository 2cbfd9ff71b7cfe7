"""Scorer `random`: the control that every other scorer must beat."""

from __future__ import annotations

import zlib

import torch

from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.scorers.base import Scorer, Scores


class RandomScorer(Scorer):
    """Uniform scores, one for each chunk, from the request's seed."""

    name = "random"

    def score(self, request: PrefillRequest) -> Scores:
        with request.clock.phase("scoring"):
            tokens, size = request.document_tokens, request.chunk_size
            generator = torch.Generator().manual_seed(question_seed(request))
            chunks = torch.rand(-(-tokens // size), generator=generator)
            return Scores(importance=chunks.repeat_interleave(size)[:tokens])


def question_seed(request: PrefillRequest) -> int:
    """A seed of the question's own, so that questions about one document do not all get the same chunks."""
    return request.seed ^ zlib.crc32(request.question.encode("utf-8", "replace"))

"""Scorer `random`: the control that every other scorer must beat."""

from __future__ import annotations

import zlib

import torch

from specprefill_cli.prefill.scorers.base import Scores, ScoringRequest


def seed_of(request: ScoringRequest) -> int:
    """Another one for each question, so that questions about one document do not all get the same chunks."""
    return request.seed ^ zlib.crc32(request.question.encode("utf-8", "replace"))


class RandomScorer:
    """Uniform scores, one for each chunk, from the request's seed."""

    name = "random"
    uses_draft = False
    looks_ahead = False

    def score(self, request: ScoringRequest) -> Scores:
        with request.clock.phase("scoring"):
            tokens, size = len(request.prompt.offsets), request.chunk_size
            generator = torch.Generator().manual_seed(seed_of(request))
            chunks = torch.rand(-(-tokens // size), generator=generator)
            return Scores(chunks.repeat_interleave(size)[:tokens])

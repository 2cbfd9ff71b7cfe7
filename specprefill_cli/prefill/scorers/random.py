"""Scorer `random`: the control that every other scorer must beat."""

from __future__ import annotations

import torch

from specprefill_cli.prefill.scorers.base import Scores, ScoringRequest


class RandomScorer:
    """Uniform scores, one for each chunk, from the request's seed."""

    name = "random"
    needs_draft = False
    looks_ahead = False

    def score(self, request: ScoringRequest) -> Scores:
        with request.clock.phase("scoring"):
            tokens, size = len(request.prompt.offsets), request.chunk_size
            generator = torch.Generator().manual_seed(request.seed)
            chunks = torch.rand(-(-tokens // size), generator=generator)
            return Scores(chunks.repeat_interleave(size)[:tokens])

"""Scorer `random`: the control that every other scorer must beat."""

from __future__ import annotations

import torch

from specprefill_cli.prefill.scorers.base import Scores, ScoringRequest

BLOCK = 32


class RandomScorer:
    """Uniform scores, one for each run of 32 tokens, from the request's seed."""

    name = "random"
    needs_draft = False

    def score(self, request: ScoringRequest) -> Scores:
        with request.clock.phase("scoring"):
            size = len(request.prompt.offsets)
            generator = torch.Generator().manual_seed(request.seed)
            blocks = torch.rand(-(-size // BLOCK), generator=generator)
            return Scores(blocks.repeat_interleave(BLOCK)[:size])

"""Scorer `paper`: the published defaults of SpecPrefill (arXiv 2502.02789)."""

from __future__ import annotations

import torch

from specprefill_cli.prefill.scorers.attention_scorer import score_with_queries
from specprefill_cli.prefill.scorers.base import Scores, ScoringRequest


class PaperScorer:
    """Queries are the last prompt token and `look_ahead` - 1 decoded tokens."""

    name = "paper"
    uses_draft = True
    looks_ahead = True

    def score(self, request: ScoringRequest) -> Scores:
        last = torch.tensor([request.draft_prompt.length - 1])
        return score_with_queries(request, last, max(0, request.look_ahead - 1))

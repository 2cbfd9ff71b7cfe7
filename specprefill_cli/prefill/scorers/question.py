"""Scorer `question`: queries are the question's tokens and the look-ahead tokens."""

from __future__ import annotations

from dataclasses import replace

import torch

from specprefill_cli.prefill.scorers.attention_scorer import score_with_queries
from specprefill_cli.prefill.scorers.base import NEIGHBOURS, Scores, ScoringRequest


class QuestionScorer:
    """The question's own tokens, not the template's suffix behind it, and every look-ahead token ask for the document."""

    name = "question"
    uses_draft = True
    looks_ahead = True

    def score(self, request: ScoringRequest) -> Scores:
        scores = score_with_queries(request, torch.arange(*request.draft_prompt.question), request.look_ahead)
        return replace(scores, neighbours=NEIGHBOURS)

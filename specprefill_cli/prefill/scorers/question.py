"""Scorer `question`: queries are the question's tokens and the look-ahead tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from specprefill_cli.prefill.scorers.attention import AttentionScorer
from specprefill_cli.prefill.scorers.base import NEIGHBOURS
from specprefill_cli.prompting import Prompt


class QuestionScorer(AttentionScorer):
    """The question's own tokens, without the chat template's suffix, and every look-ahead token are queries."""

    name = "question"
    neighbours = NEIGHBOURS

    def query_tokens(self, prompt: Prompt) -> Tensor:
        return torch.arange(*prompt.question)

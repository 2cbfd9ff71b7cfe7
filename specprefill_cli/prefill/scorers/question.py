"""Scorers `question` and `paper`: the attention of the question's tokens, and the published defaults of SpecPrefill."""

from __future__ import annotations

import torch
from torch import Tensor

from specprefill_cli.prefill.calibration import CalibratedPair
from specprefill_cli.prefill.scorers.attention import AttentionScorer
from specprefill_cli.prefill.scorers.base import NEIGHBOURS
from specprefill_cli.prompting import Prompt


class QuestionScorer(AttentionScorer):
    """The question's own tokens, without the chat template's suffix, and every look-ahead token are queries."""

    name = "question"
    neighbours = NEIGHBOURS

    def query_tokens(self, prompt: Prompt) -> Tensor:
        return torch.arange(*prompt.question)


class PaperScorer(AttentionScorer):
    """As published (arXiv 2502.02789): queries are the last prompt token and `look_ahead` - 1 decoded tokens; no window."""

    name = "paper"

    def query_tokens(self, prompt: Prompt) -> Tensor:
        return torch.tensor([prompt.length - 1])

    def decoded_queries(self, look_ahead: int) -> int:
        return max(0, look_ahead - 1)

    def window(self, pair: CalibratedPair, setting: str | int) -> None:
        return None

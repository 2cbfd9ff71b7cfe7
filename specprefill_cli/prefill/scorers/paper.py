"""Scorer `paper`: the published defaults of SpecPrefill (arXiv 2502.02789)."""

from __future__ import annotations

import torch
from torch import Tensor

from specprefill_cli.prefill.calibration import CalibratedPair
from specprefill_cli.prefill.scorers.attention import AttentionScorer
from specprefill_cli.prompting import Prompt


class PaperScorer(AttentionScorer):
    """Queries are the last prompt token and `look_ahead` - 1 decoded tokens; the draft reads without a window."""

    name = "paper"
    uses_window = False

    def query_tokens(self, prompt: Prompt) -> Tensor:
        return torch.tensor([prompt.length - 1])

    def decoded_queries(self, look_ahead: int) -> int:
        return max(0, look_ahead - 1)

    def window(self, pair: CalibratedPair, setting: str | int) -> None:
        return None

"""Sparse prefill: the target runs over kept tokens only, each at its original position."""

from __future__ import annotations

from torch import Tensor
from transformers import PreTrainedModel

from specprefill_cli.models.adapter import prefill
from specprefill_cli.models.cache import PrefillState
from specprefill_cli.prefill.fates import Plan


def sparse_prefill(model: PreTrainedModel, tokens: Tensor, plan: Plan, chunk: int) -> tuple[Tensor, PrefillState]:
    """Logits [V] of the last prompt token and the compact cache.

    tokens: [M] the whole prompt. Decoding goes on at position M, whatever was dropped.
    """
    positions = plan.kept_positions()
    return prefill(model, tokens[positions], positions, chunk)

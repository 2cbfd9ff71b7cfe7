"""Memory that a model needs, from its configuration alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specprefill_cli.models.loading import auto_class
from specprefill_cli.prefill.cost import ModelCost

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig


def parameters(config: PretrainedConfig) -> int:
    """How many weights a model has, counted on a copy without memory; weights that are shared count once."""
    import torch

    with torch.device("meta"):
        return auto_class(config).from_config(config).num_parameters()


def weight_bytes(config: PretrainedConfig, dtype: torch.dtype) -> int:
    return parameters(config) * dtype.itemsize


def cache_bytes(config: PretrainedConfig, tokens: int, dtype: torch.dtype) -> int:
    """Keys and values of `tokens` tokens in every layer."""
    cost = ModelCost.of(config)
    return 2 * tokens * cost.layers * cost.key_value_heads * cost.head_size * dtype.itemsize

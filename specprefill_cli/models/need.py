"""Memory that a model needs, from its configuration alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specprefill_cli.models.loading import auto_class
from specprefill_cli.models.quantization import NONE, SCHEMES
from specprefill_cli.prefill.cost import ModelCost

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig


def parameters(config: PretrainedConfig) -> int:
    """How many weights a model has, counted on a copy without memory; weights that are shared count once."""
    import torch

    with torch.device("meta"):
        return auto_class(config).from_config(config).num_parameters()


def weight_bytes(config: PretrainedConfig, dtype: torch.dtype, quantization: str = NONE) -> int:
    """Bytes of a model's weights; quantised are the projections of its layers, not the embeddings and norms."""
    total = parameters(config)
    if quantization == NONE:
        return total * dtype.itemsize
    cost = ModelCost.of(config)
    packed = cost.layers * cost.layer_weights
    return round(packed * SCHEMES[quantization].bytes_per_weight) + (total - packed) * dtype.itemsize


def cache_bytes(config: PretrainedConfig, tokens: int, dtype: torch.dtype) -> int:
    """Keys and values of `tokens` tokens in every layer."""
    cost = ModelCost.of(config)
    return 2 * tokens * cost.layers * cost.key_value_heads * cost.head_size * dtype.itemsize

"""Memory that a model needs, from its configuration alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specprefill_cli.models.classes import auto_class
from specprefill_cli.models.cost import ModelCost
from specprefill_cli.models.quantization import NONE, SCHEMES, checkpoint_bits

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel


def parameters(config: PretrainedConfig) -> int:
    """How many weights a model has, counted on a copy without memory; weights that are shared count once."""
    return without_memory(config).num_parameters()


def projections(config: PretrainedConfig) -> int:
    """How many of a model's weights are matrices, those of all experts too, but not its embeddings."""
    model = without_memory(config)
    outer = [part for part in (model.get_input_embeddings(), model.get_output_embeddings()) if part is not None]
    kept = {id(weight) for part in outer for weight in part.parameters()}
    return sum(weight.numel() for weight in model.parameters() if weight.dim() > 1 and id(weight) not in kept)


def without_memory(config: PretrainedConfig) -> PreTrainedModel:
    import torch

    with torch.device("meta"):
        return auto_class(config).from_config(config)


def weight_bytes(config: PretrainedConfig, dtype: torch.dtype, quantization: str = NONE) -> int:
    """Bytes of a model's weights; quantised are the projections of its layers, not the embeddings and norms.

    quantization: one of `SCHEMES`; of a checkpoint that is quantised already, its own bits count
    """
    total = parameters(config)
    stored = checkpoint_bits(config)
    if quantization == NONE and stored is None:
        return total * dtype.itemsize
    each = stored / 8 if stored is not None else SCHEMES[quantization].bytes_per_weight
    packed = projections(config)
    return round(packed * each) + (total - packed) * dtype.itemsize


def cache_bytes(config: PretrainedConfig, tokens: int, dtype: torch.dtype) -> int:
    """Keys and values of `tokens` tokens in every layer."""
    cost = ModelCost.of(config)
    return 2 * tokens * cost.layers * cost.key_value_heads * cost.head_size * dtype.itemsize

"""Memory that a model needs, from its configuration alone."""

from __future__ import annotations

import torch
from transformers import PretrainedConfig, PreTrainedModel

from specprefill_cli.models.cost import ModelCost
from specprefill_cli.models.quantization import NONE, SCHEMES, checkpoint_bits
from specprefill_cli.models.sources import auto_class


def parameters(config: PretrainedConfig) -> int:
    """Weights of a model, counted without allocating them; shared weights count once."""
    return empty_model(config).num_parameters()


def projections(config: PretrainedConfig) -> int:
    """Weights in matrices, all experts' included, but not embeddings: what quantization makes smaller."""
    model = empty_model(config)
    embeddings = (model.get_input_embeddings(), model.get_output_embeddings())
    kept = {id(weight) for module in embeddings if module is not None for weight in module.parameters()}
    return sum(weight.numel() for weight in model.parameters() if weight.dim() > 1 and id(weight) not in kept)


def empty_model(config: PretrainedConfig) -> PreTrainedModel:
    """A model whose weights take no memory."""
    import torch

    with torch.device("meta"):
        return auto_class(config).from_config(config)


def weight_bytes(config: PretrainedConfig, dtype: torch.dtype, quantization: str = NONE) -> int:
    """Bytes of a model's weights; quantization packs the projections of its layers, not embeddings and norms.

    quantization: one of `SCHEMES`; a quantised checkpoint keeps its own bits
    """
    total, bits = parameters(config), checkpoint_bits(config)
    if quantization == NONE and bits is None:
        return total * dtype.itemsize
    bytes_per_weight = bits / 8 if bits is not None else SCHEMES[quantization].bytes_per_weight
    packed = projections(config)
    return round(packed * bytes_per_weight) + (total - packed) * dtype.itemsize


def cache_bytes(config: PretrainedConfig, tokens: int, dtype: torch.dtype) -> int:
    """Bytes of the keys and values of `tokens` tokens in every layer."""
    cost = ModelCost.of(config)
    return 2 * tokens * cost.layers * cost.key_value_heads * cost.head_size * dtype.itemsize

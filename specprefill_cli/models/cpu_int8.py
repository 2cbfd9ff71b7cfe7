"""Weights in 8 bits on a CPU: decoding is bound by reading them, and these are a quarter of float32's bytes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from specprefill_cli.models.quantization import SAMPLED, UNPACKED

# Rows up to which a product with packed weights is faster than one with weights unpacked for it.
FEW_ROWS = 24


class Int8Linear(nn.Module):
    """A linear layer with int8 weights [out, in] and one scale for each output, which may be of any float dtype."""

    packed: Tensor
    scales: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.data.float()
        # Rounded first: torch's kernel takes scales in bfloat16, and an error in one would be that of a whole output.
        scales = (weight.abs().amax(1).clamp(min=1e-12) / 127).bfloat16()
        packed = (weight / scales.float()[:, None]).round_().clamp_(-127, 127).to(torch.int8)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.register_buffer("packed", packed)
        self.register_buffer("scales", scales)
        self.bias = linear.bias

    def forward(self, states: Tensor) -> Tensor:
        """States [..., in] -> [..., out] in their dtype."""
        rows = states.reshape(-1, self.in_features)
        if len(rows) > FEW_ROWS:
            weight = self.packed.to(states.dtype).mul_(self.scales[:, None])
            return F.linear(states, weight, self.bias)
        output = torch._weight_int8pack_mm(rows.bfloat16(), self.packed, self.scales).to(states.dtype)
        output = output.view(*states.shape[:-1], self.out_features)
        return output if self.bias is None else output + self.bias


def quantize_on_cpu(model: PreTrainedModel) -> None:
    """Replace all linear layers of a model on the CPU, that of the vocabulary too; embeddings stay as they are.

    What was calibrated for its weights still belongs to it.
    """
    flat = {name: weight.detach().flatten() for name, weight in model.named_parameters()}
    setattr(
        model, UNPACKED, {name: row[:: max(1, len(row) // SAMPLED)][:SAMPLED].clone() for name, row in flat.items()}
    )
    parents: list[tuple[Any, str, nn.Linear]] = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.Linear)
    ]
    for parent, name, linear in parents:
        setattr(parent, name, Int8Linear(linear))

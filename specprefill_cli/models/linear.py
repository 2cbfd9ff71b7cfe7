"""Linear layers on a CPU through oneDNN, where that multiplies float32 faster than what torch takes by itself.

torch multiplies float32 with MKL, which leaves AVX-512 unused on processors that are not Intel's; oneDNN, which torch
ships and takes for bfloat16 only, does not. Two cores of an AMD EPYC (Zen 5, torch 2.13) reach 180 GFLOP/s with MKL and
380 with oneDNN, 1,024 rows by 256 x 704 or 128 x 352, and come as close to the exact sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

# Multiplications below which oneDNN's call costs more than it saves (22 us against 7 for one row by 256 x 256; level at
# 16 rows).
SMALLEST_PRODUCT = 2**20


class OneDnnLinear(nn.Linear):
    """A linear layer of float32 weights on a CPU that multiplies with oneDNN where no gradient is wanted."""

    def forward(self, input: Tensor) -> Tensor:
        if input.numel() * self.weight.shape[0] < SMALLEST_PRODUCT or torch.is_grad_enabled():
            return super().forward(input)
        return torch.ops.mkldnn._linear_pointwise(input, self.weight, self.bias, "none", [], "")


def use_onednn(model: nn.Module) -> None:
    """Let the plain linear layers of a model multiply with oneDNN, where their weights and this machine suit it."""
    if onednn_is_faster():
        for layer in model.modules():
            if suits(layer):
                layer.__class__ = OneDnnLinear


def suits(layer: nn.Module) -> bool:
    """Whether a module is just a linear layer of float32 on the CPU: not quantised, offloaded or divided among ranks."""
    if type(layer) is not nn.Linear or hasattr(layer, "_hf_hook") or type(layer.weight) is not nn.Parameter:
        return False
    return layer.weight.device.type == "cpu" and layer.weight.dtype == torch.float32


def onednn_is_faster() -> bool:
    """Whether torch has oneDNN here and the processor has AVX-512: on Intel's, not measured, both should use it."""
    known = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return known and torch.backends.cpu.get_cpu_capability().startswith("AVX512")


@contextmanager
def torch_linears(model: nn.Module) -> Iterator[None]:
    """While it lasts, a model's linear layers multiply as torch does."""
    changed = [layer for layer in model.modules() if type(layer) is OneDnnLinear]
    for layer in changed:
        layer.__class__ = nn.Linear
    try:
        yield
    finally:
        for layer in changed:
            layer.__class__ = OneDnnLinear

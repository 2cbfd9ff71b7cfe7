"""The optimiser Muon (kellerjordan.github.io/posts/muon) in the device's faster precision.

torch's Muon orthogonalises in bfloat16. On a CPU without bfloat16 instructions that dominates the time of a step.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5


class Muon(torch.optim.Optimizer):
    """Nesterov momentum with orthogonal updates, scaled to the size of AdamW's updates.

    dtype: of the orthogonalisation
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float,
        weight_decay: float,
        dtype: torch.dtype = torch.float32,
        momentum: float = 0.95,
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update all matrices that have a gradient. Matrices of equal shape form a batch."""
        for group in self.param_groups:
            shapes: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes[parameter.shape].append(parameter)
            for (rows, columns), parameters in shapes.items():
                updates = torch.stack(
                    [self.averaged_gradient(parameter, group["momentum"]) for parameter in parameters]
                )
                size = 0.2 * math.sqrt(max(rows, columns))
                for parameter, update in zip(parameters, orthogonalise(updates.to(self.dtype)), strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.add_(update, alpha=-group["lr"] * size)

    def averaged_gradient(self, parameter: nn.Parameter, momentum: float) -> Tensor:
        """The gradient after Nesterov momentum."""
        assert parameter.grad is not None
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        state["momentum_buffer"].lerp_(parameter.grad, 1 - momentum)
        return parameter.grad.lerp(state["momentum_buffer"], momentum)


def orthogonalise(matrices: Tensor) -> Tensor:
    """The matrices [n, rows, columns] with singular values near 1, by Newton-Schulz iteration."""
    first, second, third = COEFFICIENTS
    wide = matrices if matrices.shape[1] <= matrices.shape[2] else matrices.mT
    wide = wide / wide.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(STEPS):
        gram = wide @ wide.mT
        wide = torch.baddbmm(wide, torch.baddbmm(gram, gram, gram, beta=second, alpha=third), wide, beta=first)
    return wide if matrices.shape[1] <= matrices.shape[2] else wide.mT

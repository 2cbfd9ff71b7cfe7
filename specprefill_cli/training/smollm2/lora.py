"""Low-rank adapters (LoRA, arXiv 2106.09685) of linear layers that are computed with merged weights.

The forward pass multiplies with W + scale * B A, rounded to bfloat16 as it will be shipped: training sees the weights that
users run, and needs no second product. The backward pass gives the gradients of A and B as if they were separate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class MergedLinear(torch.autograd.Function):
    """y = x W'^T for several stacked linear layers with a common input, each with an adapter of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, merged: Tensor, down: Tensor, scale: float, *ups: Tensor) -> Tensor:
        """Multiply.

        x: [T, in]; merged: [out, in], the stacked layers' merged weights; down: [n * rank, in], their A matrices, stacked
        ups: [out of the layer, rank], their B matrices
        """
        ctx.save_for_backward(x, merged, down, *ups)
        ctx.scale = scale
        return x @ merged.T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of x, down and ups; the base weights are frozen."""
        x, merged, down, *ups = ctx.saved_tensors
        (grad,) = grads
        rank = ups[0].shape[1]
        parts = grad.split([len(up) for up in ups], dim=1)
        lowered = (x @ down.T).split(rank, dim=1)
        up_grads = [ctx.scale * (part.T @ low) for part, low in zip(parts, lowered, strict=True)]
        raised = torch.cat([part @ up for part, up in zip(parts, ups, strict=True)], dim=1)
        down_grad = ctx.scale * (raised.T @ x)
        x_grad = grad @ merged if ctx.needs_input_grad[0] else None
        return x_grad, None, down_grad, None, *up_grads


def merge(base: Tensor, down: Tensor, ups: Sequence[Tensor], scale: float) -> Tensor:
    """W + scale * B A of stacked layers, in bfloat16.

    base: [out, in]; down: [n * rank, in]; ups: [out of the layer, rank] each
    """
    rank = ups[0].shape[1]
    parts = zip(down.split(rank), ups, strict=True)
    return (base.float() + scale * torch.cat([up @ low for low, up in parts])).bfloat16()

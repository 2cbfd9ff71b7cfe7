"""Fits draft-KV maps in closed form from streamed Gram matrices, so that memory does not grow with the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from specprefill_cli.draft_kv.projection import KvMap, LayerFit

# Relative to the variance of an input.
RIDGES = (1e-4, 1e-3, 1e-2, 1e-1)


@dataclass
class Gram:
    """Sums over rows in float64: inputs x inputs, inputs x outputs, and squares of outputs.

    inputs: [I, I], where the last input is the constant 1; outputs: [I, O] and squares: [O], by target layer
    """

    inputs: Tensor
    outputs: dict[int, Tensor]
    squares: dict[int, Tensor]
    rows: int = 0

    @classmethod
    def empty(cls, inputs: int, outputs: dict[int, int]) -> Gram:
        """Sums of no rows; inputs: their number without the constant; outputs: their number by target layer."""
        zeros = partial(torch.zeros, dtype=torch.float64)
        return cls(
            zeros(inputs + 1, inputs + 1),
            {layer: zeros(inputs + 1, size) for layer, size in outputs.items()},
            {layer: zeros(size) for layer, size in outputs.items()},
        )

    def add(self, inputs: Tensor, outputs: dict[int, Tensor]) -> None:
        """Add rows: inputs [N, I], and outputs [N, O] by target layer."""
        # Products of a few rows in float32: twice as fast, and their rounding errors do not add up.
        inputs = inputs.cpu().float()
        extended = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], dim=1)
        self.inputs += extended.T @ extended
        for layer, layer_outputs in outputs.items():
            layer_outputs = layer_outputs.cpu().float()
            self.outputs[layer] += extended.T @ layer_outputs
            self.squares[layer] += layer_outputs.double().square().sum(0)
        self.rows += len(inputs)

    def variance(self, layer: int) -> Tensor:
        """Sum of squared deviations of each output [O] from its mean."""
        means = self.outputs[layer][-1] / self.rows
        return self.squares[layer] - self.rows * means.square()


def fit_map(fitted: Gram, held_out: Gram, draft_layers: Sequence[int], own_size: int) -> KvMap:
    """Fit every target layer; choose the ridge strength by the held-out error.

    draft_layers: in the order of their columns; own_size: width of the target's embedding, whose columns come first
    """
    # Inputs differ in variance by orders of magnitude, and the penalty is to weigh on all alike.
    scale = fitted.inputs.diagonal().clamp(min=1e-30).rsqrt()[:, None]
    scaled = fitted.inputs * scale * scale.T
    fits, weights = dict[int, LayerFit](), dict[int, Tensor]()
    for strength in RIDGES:
        penalty = torch.full((len(scaled),), strength, dtype=torch.float64)
        # The constant, without a penalty; its small remainder keeps the matrix regular.
        penalty[-1] = 1e-9
        factor = torch.linalg.cholesky(scaled + penalty.diag())
        for layer, outputs in fitted.outputs.items():
            weight = scale * torch.cholesky_solve(scale * outputs, factor)
            keys, values = (round(error, 5) for error in missed_variance(held_out, layer, weight))
            if layer not in fits or keys + values < fits[layer].key_error + fits[layer].value_error:
                fits[layer] = LayerFit(layer, tuple(draft_layers), strength, keys, values)
                weights[layer] = weight.float()
    return KvMap(tuple(fits[layer] for layer in sorted(fits)), weights, embedding=own_size > 0)


def missed_variance(held_out: Gram, layer: int, weight: Tensor) -> tuple[float, float]:
    """Share of the variance of keys, and of values, that a map with this weight [I, O] misses on held-out rows."""
    cross = held_out.outputs[layer]
    errors = held_out.squares[layer] - 2 * (weight * cross).sum(0) + (weight * (held_out.inputs @ weight)).sum(0)
    missed, variance = (part.view(2, -1).sum(1) for part in (errors, held_out.variance(layer)))
    keys, values = (missed / variance.clamp(min=1e-30)).tolist()
    return keys, values

"""Fitting the draft-KV map in closed form, from streamed Gram matrices: memory does not grow with the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specprefill_cli.prefill.projection import KvMap, LayerFit

RIDGES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
MOST_DRAFT_LAYERS = 3
# A further draft layer must lower the held-out error by this share of it.
SMALLEST_GAIN = 0.005


@dataclass
class Gram:
    """Sums over rows in float64: inputs x inputs, inputs x outputs, and squares of outputs.

    inputs: [I, I] and outputs: per target layer [I, O], where the last input is the constant 1; squares: per layer [O]
    """

    inputs: Tensor
    outputs: dict[int, Tensor]
    squares: dict[int, Tensor]
    rows: int = 0

    @classmethod
    def empty(cls, inputs: int, outputs: dict[int, int]) -> Gram:
        wide = {"dtype": torch.float64}
        return cls(
            torch.zeros(inputs + 1, inputs + 1, **wide),
            {layer: torch.zeros(inputs + 1, size, **wide) for layer, size in outputs.items()},
            {layer: torch.zeros(size, **wide) for layer, size in outputs.items()},
        )

    def add(self, inputs: Tensor, outputs: dict[int, Tensor]) -> None:
        """Count in rows: inputs [N, I], per target layer outputs [N, O]."""
        inputs = inputs.cpu().double()
        wide = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], dim=1)
        self.inputs += wide.T @ wide
        for layer, values in outputs.items():
            values = values.cpu().double()
            self.outputs[layer] += wide.T @ values
            self.squares[layer] += values.square().sum(0)
        self.rows += len(inputs)

    def variance(self, layer: int) -> Tensor:
        """Sum of squared deviations of each output [O] from its mean."""
        means = self.outputs[layer][-1] / self.rows
        return self.squares[layer] - self.rows * means.square()

    def residual(self, layer: int, columns: Tensor, weight: Tensor) -> Tensor:
        """Sum of squared errors of each output [O] under a weight [columns, O]."""
        inputs = self.inputs[columns][:, columns]
        cross = self.outputs[layer][columns]
        return self.squares[layer] - 2 * (weight * cross).sum(0) + (weight * (inputs @ weight)).sum(0)


def ridge(gram: Gram, layer: int, columns: Tensor, strength: float) -> Tensor:
    """Weight [columns, O] of a ridge regression; the strength counts in mean diagonal entries, the constant is free."""
    inputs = gram.inputs[columns][:, columns]
    penalty = torch.full((len(columns),), strength * float(inputs.diagonal()[:-1].mean()), dtype=torch.float64)
    penalty[-1] = 0
    return torch.linalg.solve(inputs + penalty.diag(), gram.outputs[layer][columns])


def missed(held_out: Gram, layer: int, columns: Tensor, weight: Tensor) -> tuple[float, float]:
    """Share of the variance of keys and of values that a map misses on held-out rows."""
    errors, variance = held_out.residual(layer, columns, weight), held_out.variance(layer)
    half = len(errors) // 2
    return tuple(
        float(errors[part].sum() / variance[part].sum().clamp(min=1e-30))
        for part in (slice(None, half), slice(half, None))
    )


def fit_map(
    fitted: Gram,
    held_out: Gram,
    candidates: Sequence[int],
    draft_size: int,
    edge_size: int,
    exact_layers: int,
    with_draft: bool = True,
) -> KvMap:
    """For every target layer: draft layers chosen greedily and ridge strength, both by the held-out error.

    with_draft: whether at least one draft layer is read; without, the target's own state is all there is
    candidates: draft layers in the order of their columns, each `draft_size` wide; edge_size: width of the target's
    state before them (0: none)
    """
    fits, weights = [], {}
    for layer in sorted(fitted.outputs):
        best: tuple[float, tuple[int, ...], float, Tensor] | None = None
        if not with_draft:
            best = best_ridge(fitted, held_out, layer, (), columns_of((), candidates, draft_size, edge_size))
        while with_draft and (best is None or len(best[1]) < MOST_DRAFT_LAYERS):
            chosen = best[1] if best is not None else ()
            tried = [
                best_ridge(fitted, held_out, layer, more, columns_of(more, candidates, draft_size, edge_size))
                for number in candidates
                if number not in chosen
                for more in [tuple(sorted((*chosen, number)))]
            ]
            if not tried:
                break
            winner = min(tried, key=lambda one: one[0])
            if best is not None and winner[0] > (1 - SMALLEST_GAIN) * best[0]:
                break
            best = winner
        _, chosen, strength, weight = best
        keys, values = missed(held_out, layer, columns_of(chosen, candidates, draft_size, edge_size), weight)
        fits.append(LayerFit(layer, chosen, strength, round(keys, 5), round(values, 5)))
        weights[layer] = weight.float()
    return KvMap(exact_layers, tuple(fits), weights)


def best_ridge(
    fitted: Gram, held_out: Gram, layer: int, chosen: tuple[int, ...], columns: Tensor
) -> tuple[float, tuple[int, ...], float, Tensor]:
    """Held-out error, draft layers, strength and weight of the best ridge strength."""
    options = []
    for strength in RIDGES:
        weight = ridge(fitted, layer, columns, strength)
        options.append((sum(missed(held_out, layer, columns, weight)), chosen, strength, weight))
    return min(options, key=lambda one: one[0])


def columns_of(chosen: Sequence[int], candidates: Sequence[int], draft_size: int, edge_size: int) -> Tensor:
    """Columns of the inputs that belong to the target's edge state, the chosen draft layers, and the constant."""
    parts = [torch.arange(edge_size)]
    for layer in chosen:
        start = edge_size + list(candidates).index(layer) * draft_size
        parts.append(torch.arange(start, start + draft_size))
    constant = edge_size + len(candidates) * draft_size
    return torch.cat([*parts, torch.tensor([constant])])

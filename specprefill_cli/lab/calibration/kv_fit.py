"""Fits draft-KV maps in closed form from streamed Gram matrices, so that memory does not grow with the text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from specprefill_cli.draft_kv.projection import KvMap, LayerFit

RIDGES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
MOST_DRAFT_LAYERS = 3
# Another draft layer must lower the held-out error by at least this share.
SMALLEST_GAIN = 0.005


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
        inputs = inputs.cpu().double()
        extended = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], dim=1)
        self.inputs += extended.T @ extended
        for layer, layer_outputs in outputs.items():
            layer_outputs = layer_outputs.cpu().double()
            self.outputs[layer] += extended.T @ layer_outputs
            self.squares[layer] += layer_outputs.square().sum(0)
        self.rows += len(inputs)

    def variance(self, layer: int) -> Tensor:
        """Sum of squared deviations of each output [O] from its mean."""
        means = self.outputs[layer][-1] / self.rows
        return self.squares[layer] - self.rows * means.square()

    def part(self, columns: Tensor) -> Tensor:
        """The block of `inputs` for some columns."""
        return self.inputs[columns][:, columns]

    def residual(self, layer: int, columns: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
        """Sum of squared errors of each output [O] with a weight [columns, O]; inputs: `part` of the columns."""
        cross = self.outputs[layer][columns]
        return self.squares[layer] - 2 * (weight * cross).sum(0) + (weight * (inputs @ weight)).sum(0)


def factorize(inputs: Tensor, strength: float) -> tuple[Tensor, Tensor]:
    """Factorise the matrix of a ridge regression with an unpenalised constant; all layers share it.

    inputs: `Gram.part`; strength: relative to the mean diagonal entry
    """
    penalty = torch.full((len(inputs),), strength * float(inputs.diagonal()[:-1].mean()), dtype=torch.float64)
    penalty[-1] = 0
    return torch.linalg.lu_factor(inputs + penalty.diag())


def missed_variance(held_out: Gram, layer: int, columns: Tensor, inputs: Tensor, weight: Tensor) -> tuple[float, float]:
    """Share of the variance of keys, and of values, that a map does not explain on held-out rows."""
    errors, variance = held_out.residual(layer, columns, inputs, weight), held_out.variance(layer)
    half = len(errors) // 2
    keys, values = (
        float(errors[part].sum() / variance[part].sum().clamp(min=1e-30))
        for part in (slice(None, half), slice(half, None))
    )
    return keys, values


@dataclass(frozen=True)
class Fit:
    """A ridge regression for a target layer: its held-out errors, draft layers, strength, and weight [columns, O]."""

    key_error: float
    value_error: float
    draft_layers: tuple[int, ...]
    strength: float
    weight: Tensor

    @property
    def error(self) -> float:
        """The held-out error, for comparing fits."""
        return self.key_error + self.value_error


def fit_map(
    fitted: Gram,
    held_out: Gram,
    candidates: Sequence[int],
    draft_size: int,
    own_size: int,
) -> KvMap:
    """Fit every target layer; choose draft layers greedily, and the ridge strength by the held-out error.

    candidates: draft layers in the order of their columns, each `draft_size` wide
    own_size: width of the target's embedding, whose columns come first
    """
    best_fit: dict[int, Fit] = {}
    choices: dict[int, list[tuple[int, ...]]] = {
        layer: [(number,) for number in candidates] for layer in fitted.outputs
    }
    while any(choices.values()):
        winners = best_fits(fitted, held_out, choices, partial(columns_of, candidates, draft_size, own_size))
        choices = {}
        for layer, fit in winners.items():
            if layer in best_fit and fit.error > (1 - SMALLEST_GAIN) * best_fit[layer].error:
                continue
            best_fit[layer] = fit
            if len(fit.draft_layers) < MOST_DRAFT_LAYERS:
                other_layers = (number for number in candidates if number not in fit.draft_layers)
                choices[layer] = [tuple(sorted((*fit.draft_layers, number))) for number in other_layers]
    fits = tuple(
        LayerFit(layer, fit.draft_layers, fit.strength, round(fit.key_error, 5), round(fit.value_error, 5))
        for layer, fit in sorted(best_fit.items())
    )
    weights = {layer: fit.weight.float() for layer, fit in best_fit.items()}
    return KvMap(fits, weights, embedding=own_size > 0)


def best_fits(
    fitted: Gram,
    held_out: Gram,
    choices: Mapping[int, Sequence[tuple[int, ...]]],
    columns_of_layers: Callable[[tuple[int, ...]], Tensor],
) -> dict[int, Fit]:
    """Find the best fit of each target layer among its choices of draft layers; each matrix is factorised only once."""
    layers_by_choice = defaultdict(list)
    for layer, options in choices.items():
        for draft_layers in options:
            layers_by_choice[draft_layers].append(layer)
    winners: dict[int, Fit] = {}
    for draft_layers, layers in layers_by_choice.items():
        columns = columns_of_layers(draft_layers)
        inputs, held_out_inputs = fitted.part(columns), held_out.part(columns)
        for strength in RIDGES:
            factors = factorize(inputs, strength)
            for layer in layers:
                weight = torch.linalg.lu_solve(*factors, fitted.outputs[layer][columns])
                errors = missed_variance(held_out, layer, columns, held_out_inputs, weight)
                fit = Fit(*errors, draft_layers, strength, weight)
                if layer not in winners or fit.error < winners[layer].error:
                    winners[layer] = fit
    return winners


def columns_of(candidates: Sequence[int], draft_size: int, own_size: int, draft_layers: Sequence[int]) -> Tensor:
    """Columns of the inputs that belong to the target's own states, the chosen draft layers, and the constant."""
    widths = [own_size, *[draft_size] * len(candidates), 1]
    target_columns, *drafts, constant = torch.arange(sum(widths)).split(widths)
    return torch.cat([target_columns, *(drafts[list(candidates).index(layer)] for layer in draft_layers), constant])

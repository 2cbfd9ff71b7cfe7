"""What the remaining risk tells where both outcomes occur: budgets of 5 to 50 % pooled, each signal, lower and upper layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specprefill_cli.lab.evaluation.statistics import auroc, known_mean

LAYERS = ("all", "lower", "upper")
DRAWS = 500


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One prompt with one budget: the risk that remains in its accepted chunks, and what became of the answer.

    risks: by signal and layers (one of `LAYERS`)
    """

    budget: float
    risks: Mapping[tuple[str, str], float]
    first_token_changed: bool
    answer_changed: bool


EVENTS: dict[str, Callable[[Outcome], bool]] = {
    "first_token": lambda outcome: outcome.first_token_changed,
    "answer": lambda outcome: outcome.answer_changed,
}


def pooled_rows(prompts: Sequence[Sequence[Outcome]]) -> list[dict]:
    """By signal and layers, the AUROC of the risk for each event with a 95 % bootstrap interval over prompts.

    pooled: over all budgets, where the budget itself tells much; within: the mean of the AUROC of each budget
    """
    rows = []
    for signal, layers in prompts[0][0].risks if prompts and prompts[0] else ():
        row: dict = {"signal": signal, "layers": layers}
        for event in EVENTS:
            risks = np.array([[outcome.risks[signal, layers] for outcome in outcomes] for outcomes in prompts])
            happened = np.array([[EVENTS[event](outcome) for outcome in outcomes] for outcomes in prompts])
            row[event] = {
                "pooled": auroc(risks.ravel(), happened.ravel()),
                "interval": interval(risks, happened),
                "within": known_mean(auroc(*column) for column in zip(risks.T, happened.T, strict=True)),
                "happened": float(happened.mean()),
            }
        rows.append(row)
    return rows


def interval(risks: np.ndarray, happened: np.ndarray, seed: int = 0) -> tuple[float, float] | None:
    """95 % interval of the pooled AUROC, drawing whole prompts; risks, happened: [prompts, budgets]."""
    generator = np.random.default_rng(seed)
    values = []
    for _ in range(DRAWS):
        drawn = generator.integers(0, len(risks), len(risks))
        value = auroc(risks[drawn].ravel(), happened[drawn].ravel())
        if value is not None:
            values.append(value)
    return tuple(np.quantile(values, (0.025, 0.975)).tolist()) if values else None

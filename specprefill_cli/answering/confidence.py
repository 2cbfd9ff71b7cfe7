"""How likely an answer is right, and the documents state one: logistic regressions on signals that any target has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from specprefill_cli.prefill.calibration import read_description, weights_fingerprint

if TYPE_CHECKING:
    from specprefill_cli.models.loaded import LoadedModel

FILE = "confidence.json"
REMEDY = "specprefill calibrate --confidence QUESTIONS.jsonl"


@dataclass(frozen=True, kw_only=True)
class ConfidenceModel:
    """Weights of the signals; target: fingerprint of the target that they were fitted for; evidence: figures of the fit."""

    intercept: float
    weights: Mapping[str, float]
    target: str = ""
    evidence: Mapping[str, float] = field(default_factory=dict)

    def probability(self, signals: Mapping[str, float]) -> float:
        """The probability from the values of signals."""
        logit = self.intercept + sum(weight * signals[name] for name, weight in self.weights.items())
        return 1 / (1 + math.exp(-logit))


# Fitted over Qwen2.5-Coder 0.5B and 1.5B and SmolLM2-135M with and without adapter, a quarter of the questions without an answer;
# the first of each needs the target's probabilities.
ANSWERABLE = (
    ConfidenceModel(intercept=-0.63, weights={"refusal": -0.15, "words": 2.76, "names": -2.93, "denial": -0.27}),
    ConfidenceModel(intercept=-0.05, weights={"words": 2.92, "names": -2.97, "refused": -0.69}),
)
RIGHT = (
    ConfidenceModel(intercept=0.5, weights={"words": 0.98, "names": -2.23, "mean": 2.63, "source": 1.86}),
    ConfidenceModel(intercept=-0.2, weights={"words": 1.01, "names": -2.09, "source": 2.56}),
)
# Below the first, the answer comes with a doubt; below the second, `--not-found strict` replaces it.
DOUBTFUL, DENIED = 0.5, 0.4


def estimate(models: Sequence[ConfidenceModel], signals: Mapping[str, float]) -> float | None:
    """The probability by the first model whose signals are all known; None without one."""
    return next((model.probability(signals) for model in models if model.weights.keys() <= signals.keys()), None)


def load_confidence(folder: Path, target: LoadedModel) -> ConfidenceModel | None:
    """Load the model in a folder; None if it has none for exactly these weights, quantization included.

    Raises SpecprefillError if the file is damaged.
    """
    stored = read_description(folder / FILE, "confidence", REMEDY, lambda values: ConfidenceModel(**values))
    return stored if stored is not None and stored.target == weights_fingerprint(target.model) else None

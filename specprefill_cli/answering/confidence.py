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


# Fitted over Qwen2.5-Coder 0.5B and 1.5B with the prompt `ask`: for targets whose probabilities are known, and for endpoints.
ANSWERABLE = (
    ConfidenceModel(intercept=0.7, weights={"margin": -0.45, "names": -3.89}),
    ConfidenceModel(intercept=1.39, weights={"names": -4.08}),
)
RIGHT = (ConfidenceModel(intercept=1.41, weights={"mean": 2.4, "source": 2.57}),)
# A larger margin of `not found`, either way, counts as this, in nats.
LARGEST_MARGIN = 6.0
# Below the first, the answer comes with a doubt; below the second, `--not-found strict` says `not found` in its place.
DOUBTFUL, DENIED = 0.7, 0.5


def estimate(models: Sequence[ConfidenceModel], signals: Mapping[str, float]) -> float | None:
    """The probability by the first model whose signals are all known; None without one."""
    return next((model.probability(signals) for model in models if model.weights.keys() <= signals.keys()), None)


def load_confidence(folder: Path, target: LoadedModel) -> ConfidenceModel | None:
    """Load the model in a folder; None if it has none for exactly these weights, quantization included.

    Raises SpecprefillError if the file is damaged.
    """
    stored = read_description(folder / FILE, "confidence", REMEDY, lambda values: ConfidenceModel(**values))
    return stored if stored is not None and stored.target == weights_fingerprint(target.model) else None

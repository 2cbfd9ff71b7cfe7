"""How likely an answer is right: a logistic regression that `specprefill calibrate --confidence` fits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specprefill_cli.documents.language import says_not_found
from specprefill_cli.prefill.calibration import read_description, weights_fingerprint

if TYPE_CHECKING:
    from specprefill_cli.models.loaded import LoadedModel

FILE = "confidence.json"
REMEDY = "specprefill calibrate --confidence QUESTIONS.jsonl"


@dataclass(frozen=True, kw_only=True)
class ConfidenceFeatures:
    """Features that separate right answers from wrong ones.

    mean, lowest: mean and minimum of the natural log-probabilities that the target gave the answer's tokens
    source: relevance of the sentence that the answer quotes, minus the highest relevance of any sentence; at most 0
    """

    mean: float
    lowest: float
    source: float


@dataclass(frozen=True, kw_only=True)
class ConfidenceModel:
    """Weights of the signals; target: fingerprint of the target that they were fitted for; evidence: figures of the fit."""

    intercept: float
    weights: Mapping[str, float]
    target: str
    evidence: Mapping[str, float]

    def probability(self, signals: ConfidenceFeatures) -> float:
        """The probability that an answer is right."""
        logit = self.intercept + sum(self.weights[name] * value for name, value in vars(signals).items())
        return 1 / (1 + math.exp(-logit))


def load_confidence(folder: Path, target: LoadedModel) -> ConfidenceModel | None:
    """Load the model in a folder; None if it has none for exactly these weights, quantization included.

    Raises SpecprefillError if the file is damaged.
    """
    stored = read_description(folder / FILE, "confidence", REMEDY, lambda values: ConfidenceModel(**values))
    return stored if stored is not None and stored.target == weights_fingerprint(target.model) else None


def confidence_features(
    answer: str, log_probabilities: Sequence[float], source: float, highest: float
) -> ConfidenceFeatures | None:
    """The signals of an answer; None for an empty answer and for `not found`.

    source, highest: relevance of the sentence that the answer quotes (0 without a quote), and the highest of all sentences
    """
    if not answer or not log_probabilities or says_not_found(answer):
        return None
    mean = sum(log_probabilities) / len(log_probabilities)
    return ConfidenceFeatures(mean=mean, lowest=min(log_probabilities), source=source - highest)

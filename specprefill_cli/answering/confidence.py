"""How likely an answer is right, and whether the documents state it: logistic regressions on signals that any target has."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from specprefill_cli.files import BUNDLED_FOLDER
from specprefill_cli.models.loaded import LoadedModel
from specprefill_cli.models.running.cache import KvCacheState
from specprefill_cli.prefill.calibration import read_description, weights_fingerprint

FILE, ANSWERABLE_FILE = "confidence.json", "answerable.json"
# Tokens that a target may read for a fit on its states to hold: fits have seen short prompts.
MOST_READ = 600


@dataclass(frozen=True, kw_only=True)
class ConfidenceModel:
    """Weights of the signals; target: fingerprints of the weights that they were fitted for; evidence: figures of the fit.

    states: by layer, weights of the values [kv_heads * head_size] that it holds of the prompt's last token
    """

    intercept: float
    weights: Mapping[str, float]
    states: Mapping[str, Sequence[float]] = field(default_factory=dict)
    target: str = ""
    evidence: Mapping[str, float] = field(default_factory=dict)

    def probability(self, signals: Mapping[str, float]) -> float:
        logit = self.intercept + sum(weight * signals[name] for name, weight in self.weights.items())
        return 1 / (1 + math.exp(-logit))

    def of_states(self, state: KvCacheState) -> float:
        """The weighted values of the prompt's last token, as a signal; state: of the target right after prefill."""
        return sum(float(last_values(state, int(layer)) @ Tensor(weights)) for layer, weights in self.states.items())


def last_values(state: KvCacheState, layer: int) -> Tensor:
    """The values [kv_heads * head_size] of the last token in a layer's cache, in float32 on the CPU."""
    return state.layers[layer].values[0, :, -1].flatten().float().cpu()


# Fitted over Qwen2.5-Coder 0.5B and 1.5B with the prompt `ask`: for targets whose probabilities are known, and for endpoints.
ANSWERABLE = (
    ConfidenceModel(intercept=0.7, weights={"margin": -0.45, "names": -3.89}),
    ConfidenceModel(intercept=1.39, weights={"names": -4.08}),
)
RIGHT = (ConfidenceModel(intercept=1.41, weights={"mean": 2.4, "source": 2.57}),)
# A larger margin of `not found`, either way, counts as this, in nats.
LARGEST_MARGIN = 6.0
# Below the first, the answer comes with a doubt; below the second, `--not-found strict` says `not found` in its place, and
# below the third `warn` does, if the model was fitted for this target.
DOUBTFUL, DENIED, NEARLY_SURE = 0.7, 0.5, 0.3


def estimate(models: Sequence[ConfidenceModel], signals: Mapping[str, float]) -> float | None:
    """The probability by the first model whose signals are all known; None without one."""
    return next((model.probability(signals) for model in models if model.weights.keys() <= signals.keys()), None)


def load_confidence(path: Path, target: LoadedModel) -> ConfidenceModel | None:
    """Load a model of a file; None if there is none for exactly these weights. Raises SpecprefillError for a damaged file."""
    remedy = f"specprefill calibrate --{path.stem} QUESTIONS.jsonl"
    stored = read_description(path, path.stem, remedy, lambda values: ConfidenceModel(**values))
    return stored if stored is not None and weights_fingerprint(target.model) in stored.target else None


def load_answerable(folder: Path, target: LoadedModel) -> ConfidenceModel | None:
    """Load the model of whether the documents state an answer: of a pair's folder, else as shipped for exactly these weights."""
    paths = [folder / ANSWERABLE_FILE, *sorted(BUNDLED_FOLDER.parent.glob(f"*/{ANSWERABLE_FILE}"))]
    return next(filter(None, (load_confidence(path, target) for path in paths)), None)

"""What short texts beside a document ask: for one place of it, for all of it, or nothing.

A linear model reads the mean states of two layers of the encoder of all languages: no wordings have to be listed.
`python -m specprefill_cli.training intent` fits it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache

from safetensors.torch import load_file
from torch import Tensor

from specprefill_cli.files import MULTILINGUAL_FOLDER
from specprefill_cli.models.encoder import load_encoder

WEIGHTS = "intent.safetensors"
# Layers of the encoder whose mean states are read.
LAYERS = (9, 10)
KINDS = ("place", "whole", "neither")
# Texts whose intent is remembered: instructions come again with every request.
REMEMBERED = 4_096


@dataclass(frozen=True)
class Intent:
    """The probabilities of what a text asks: for one place of a document, for what needs all of it, or nothing."""

    place: float
    whole: float
    neither: float


@lru_cache(maxsize=REMEMBERED)
def intent_of(text: str) -> Intent:
    """What a text asks, by its first 254 tokens. Raises SpecprefillError if the encoder is missing."""
    states = load_encoder("cpu", MULTILINGUAL_FOLDER).mean_states(text, LAYERS).flatten()
    weights = load_weights()
    return Intent(*(weights["weight"] @ states + weights["bias"]).softmax(0).tolist())


@cache
def load_weights() -> dict[str, Tensor]:
    """The linear model: weight [kinds, layers * WIDTH] and bias [kinds]."""
    return load_file(MULTILINGUAL_FOLDER / WEIGHTS)

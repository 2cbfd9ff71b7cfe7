"""The mixture of training data, and the draft's sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Ratios from 0 to 1, with the defaults of the shipped recipe.

    written: of contexts with written questions among the blocks of a document that has them
    renamed: of documents with replaced names and numbers; noisy: of written questions that lose words
    cloze: of passages with cloze questions; the others have synthesised facts woven in
    absent: of answerable questions that are followed by an unanswerable question
    single_topic: of documents whose blocks share a topic
    thinned: of documents of which only some chunks are shown
    """

    written: float = 0.8
    renamed: float = 0.4
    noisy: float = 0.15
    cloze: float = 0.5
    absent: float = 0.05
    single_topic: float = 0.6
    thinned: float = 0.3


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Sizes of a Llama model, and the layers with guided heads (see `network.ProbeTargets`)."""

    hidden_size: int
    layers: int
    heads: int
    intermediate_size: int
    region_layers: Sequence[int]
    pointer_layers: Sequence[int]
    head_size: int = 64


# The shipped draft, and one for a smoke test.
SHAPES: Mapping[str, ModelShape] = {
    "draft": ModelShape(
        hidden_size=128, layers=3, heads=2, intermediate_size=352, region_layers=[2], pointer_layers=[2]
    ),
    "smoke": ModelShape(
        hidden_size=32, layers=2, heads=1, head_size=32, intermediate_size=64, region_layers=[1], pointer_layers=[1]
    ),
}

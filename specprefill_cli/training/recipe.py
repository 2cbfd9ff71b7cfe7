"""The mixture of training data, the settings of a run, and the models' sizes, from shapes.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources


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
class TrainSettings:
    """How a run trains.

    minutes: length of the run, resumed parts included; the clock leaves out loading and the first batch's compilation
    rate: highest learning rate; warmup: steps in which it rises; cooldown: part of the run, at its end, in which it falls
    compile: compile the layers, and compute in bfloat16 where that is fast
    draft_every: update the draft at every n-th step, because it learns faster than the target; 0 leaves it unchanged
    curriculum_from: progress at which the curriculum of rows begins; later for weights that can already copy
    """

    minutes: float
    rate: float = 4e-3
    warmup: int = 30
    cooldown: float = 0.35
    text_weight: float = 0.4
    region_weight: float = 0.1
    pointer_weight: float = 1.0
    distill_weight: float = 0.5
    draft_every: int = 3
    curriculum_from: float = 0.0
    workers: int = 1
    seed: int = 1
    compile: bool = True


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
    vocabulary: int = 8_192
    rope_theta: float = 500_000.0
    context: int = 16_384
    norm_epsilon: float = 1e-5

    @property
    def key_value_heads(self) -> int:
        return max(1, self.heads // 2)


# A pair's sizes as target and draft.
PairShape = Mapping[str, ModelShape]
# Pairs for runs on a CPU, and for a smoke test.
PAIR_SHAPES: Mapping[str, PairShape] = {
    name: {role: ModelShape(**sizes) for role, sizes in pair.items()}
    for name, pair in json.loads((resources.files(__package__) / "shapes.json").read_text(encoding="utf-8")).items()
}

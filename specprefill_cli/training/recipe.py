"""What a run trains on and how."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Ratios from 0 to 1, with the defaults of the shipped recipe.

    written: of contexts with written questions among the blocks of a document that has them
    renamed: of documents with other names and numbers; noisy: of written questions that lose words
    cloze: of passages with questions about themselves; the others have synthesised facts woven in
    absent: of questions with an answer that are followed by one that the document does not answer
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

    minutes: length of the whole run, resumed parts included; the clock runs from batch to batch, without the time
        to load and to compile for the first
    rate: highest learning rate; warmup: steps in which it rises; cooldown: part of the run, at its end, in which it falls
    compile: compile the layers, and compute in bfloat16 where the device is fast in it
    draft_every: the draft, which learns its part sooner, is updated at every n-th step only; 0 leaves it unchanged
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
    device: str = "cpu"
    compile: bool = True

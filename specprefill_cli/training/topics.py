"""Sources of a training document's blocks: unrelated passages and facts, or those of a single topic.

A document about a single topic, such as a manual, has the words of a question in many places. A model has to find the
place that answers. Among unrelated blocks the topic alone reveals it.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from specprefill_cli.training.corpus import ContextQuestions
from specprefill_cli.training.synthesis import FactBook

# Sets with questions that name their subject. Others ("What is collected?") fit many paragraphs of a topic.
TOPICAL_SOURCES = ("squad", "fairytaleqa", "friendsqa")


@dataclass
class Material:
    """Material for documents: passages in the order of their texts, contexts with questions, and facts."""

    passages: Sequence[str]
    groups: Sequence[ContextQuestions]
    book: FactBook
    group_weights: list[float] = field(init=False)
    topical_weights: list[float] = field(init=False)

    def __post_init__(self) -> None:
        # Contexts with many questions have more weight, but not in proportion: some have fifty on a sentence.
        weights = [min(len(group.questions), 8) ** 0.5 for group in self.groups]
        topical = [group.source.startswith(TOPICAL_SOURCES) for group in self.groups]
        self.group_weights = list(accumulate(weights))
        self.topical_weights = list(accumulate(w * t for w, t in zip(weights, topical, strict=True)))


class Scattered:
    """Every block from a random place.

    stated: the (group, subject) pairs that the document states already (see `FactBook.statements`)
    """

    def __init__(self, material: Material, rng: random.Random) -> None:
        self.material = material
        self.rng = rng
        self.stated: set[tuple[str, str]] = set()

    def passage(self) -> str:
        return self.rng.choice(self.material.passages)

    def group(self) -> ContextQuestions:
        return self.rng.choices(self.material.groups, cum_weights=self.material.group_weights)[0]

    def domain(self) -> str:
        return self.rng.choice(self.material.book.domains)


class SingleTopic(Scattered):
    """Consecutive passages of a text, consecutive contexts of a set, and facts of a single domain."""

    def __init__(self, material: Material, rng: random.Random) -> None:
        super().__init__(material, rng)
        self.last_passage = rng.randrange(len(material.passages))
        self.last_group: int | None = None
        # Drawn by relation, because a domain with many relations suffices for a long document.
        self.only_domain = rng.choice(material.book.relations)["domain"]

    def passage(self) -> str:
        self.last_passage = (self.last_passage + 1) % len(self.material.passages)
        return self.material.passages[self.last_passage]

    def group(self) -> ContextQuestions:
        """The context after the last, or a random context where the set ends or has no neighbours."""
        groups, weights = self.material.groups, self.material.topical_weights
        if not weights[-1]:
            return super().group()
        last = self.last_group
        if last is None or last + 1 == len(groups) or groups[last + 1].source != groups[last].source:
            self.last_group = self.rng.choices(range(len(groups)), cum_weights=weights)[0]
        else:
            self.last_group = last + 1
        return groups[self.last_group]

    def domain(self) -> str:
        return self.only_domain


def draw_topic(material: Material, rng: random.Random, single: float) -> Scattered:
    """The source of a document's blocks, with a probability `single` of a single topic."""
    return (SingleTopic if rng.random() < single else Scattered)(material, rng)

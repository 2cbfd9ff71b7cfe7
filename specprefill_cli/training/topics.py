"""What the blocks of a training document are drawn from: unrelated passages and facts, or those of one topic.

In a document about one topic all that a question names occurs in many places, as it does in a manual or a report: the
place that answers has to be told from others like it. Among unrelated blocks the topic alone gives it away.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from specprefill_cli.training.corpus import ContextQuestions
from specprefill_cli.training.synthesis import FactBook

# Sets whose questions name what they ask about. Those of the others ("What is collected?") fit many paragraphs of a topic.
TOPICAL_SOURCES = ("squad", "fairytaleqa", "friendsqa")


@dataclass
class Material:
    """All that documents are made of: passages in the order of their texts, contexts with questions, and facts."""

    passages: Sequence[str]
    groups: Sequence[ContextQuestions]
    book: FactBook
    group_weights: list[float] = field(init=False)
    topical_weights: list[float] = field(init=False)

    def __post_init__(self) -> None:
        # Contexts with many questions more often, but not in proportion: some have fifty about one sentence.
        weights = [min(len(group.questions), 8) ** 0.5 for group in self.groups]
        topical = [group.source.startswith(TOPICAL_SOURCES) for group in self.groups]
        self.group_weights = list(accumulate(weights))
        self.topical_weights = list(accumulate(w * t for w, t in zip(weights, topical, strict=True)))


class Scattered:
    """Every block from another place."""

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


class OneTopic(Scattered):
    """Neighbouring passages of one text, neighbouring contexts of one set, and facts of one domain."""

    def __init__(self, material: Material, rng: random.Random) -> None:
        super().__init__(material, rng)
        self.next_passage = rng.randrange(len(material.passages))
        self.next_group: int | None = None
        # A domain with many relations lasts for a long document.
        self.chosen = rng.choice(material.book.relations)["domain"]

    def passage(self) -> str:
        self.next_passage = (self.next_passage + 1) % len(self.material.passages)
        return self.material.passages[self.next_passage]

    def group(self) -> ContextQuestions:
        """The context after the last one; from another place where the set ends or holds no neighbours."""
        groups, weights = self.material.groups, self.material.topical_weights
        if not weights[-1]:
            return super().group()
        last = self.next_group
        if last is None or last + 1 == len(groups) or groups[last + 1].source != groups[last].source:
            self.next_group = self.rng.choices(range(len(groups)), cum_weights=weights)[0]
        else:
            self.next_group = last + 1
        return groups[self.next_group]

    def domain(self) -> str:
        return self.chosen

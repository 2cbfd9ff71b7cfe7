"""The rungs of the ladder: a trial is an entry here, and `python -m specprefill_cli.training ladder` runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

BASELINE = "baseline"


@dataclass(frozen=True)
class Rung:
    """Changes to the shipped recipe, by field of `Recipe` and of `TrainSettings`; about: what they are, in words."""

    name: str
    about: str
    recipe: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)

    @property
    def changes(self) -> dict[str, dict[str, Any]]:
        """The changes as JSON has them."""
        return {"recipe": dict(self.recipe), "training": dict(self.training)}


RUNGS = {
    rung.name: rung
    for rung in (
        Rung(BASELINE, "the shipped recipe"),
        Rung("dropout", "dropout of 0.1 on embeddings and residuals", training={"dropout": 0.1}),
        Rung("renamed", "other names and numbers in nearly all rows", recipe={"renamed": 0.95}),
        Rung("three-times", "each written question at most three times", recipe={"most_asked": 3}),
        Rung("mean", "moving average of the weights along the run", training={"average": 0.99}),
        Rung("question-first", "the question on both sides of the document", recipe={"question_first": True}),
        Rung("selected", "thinned documents hold the chunks that the draft chooses", recipe={"selected": 1.0}),
        # A quarter of the questions with an answer are followed by one without: a fifth of all.
        Rung("absent", "one question in five has no answer in the document", recipe={"absent": 0.25}),
        Rung("by-rule", "more questions made by rule", recipe={"cloze": 0.9, "written": 0.5}),
    )
}

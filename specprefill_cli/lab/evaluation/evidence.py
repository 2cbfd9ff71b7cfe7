"""Whether kept tokens and the passages under answers hold the answer, and whether confidence means what it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

import numpy as np

from specprefill_cli.answering.answer import Answer
from specprefill_cli.answering.citations import occurrences
from specprefill_cli.answering.confidence import LIKELY
from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.lab.evaluation.metrics import contains_answer, f1
from specprefill_cli.prefill.fates import Fate, Plan

# F1 from which an answer counts as right.
RIGHT = 0.5
BIN_EDGES = (0.0, 0.2, 0.4, LIKELY, 1.0)


@dataclass(frozen=True, kw_only=True)
class ReliabilityBin:
    """Answers with a confidence from `low` to below `high` (the last bin's end included): how many, and how many right."""

    low: float
    high: float
    n: int
    right: int


@dataclass(frozen=True, kw_only=True)
class EvidenceFigures:
    """Figures of what stands under answers.

    passage_recall: percentage of answerable questions with a reference in their passages; None without passages
    passage_words: median number of words in an answer's passages
    reliability: answers by confidence; empty where the pair states none
    """

    passage_recall: float | None
    passage_words: float | None
    reliability: list[ReliabilityBin]

    @property
    def likely(self) -> ReliabilityBin | None:
        """The answers that are called likely right."""
        return self.reliability[-1] if self.reliability else None


def evidence_figures(answers: Sequence[tuple[Item, Answer]]) -> EvidenceFigures:
    """The figures of answered questions."""
    shown = [
        (item, " ".join(passage.text for passage in answer.passages)) for item, answer in answers if answer.passages
    ]
    recalls = [100.0 * contains_answer(text, item.answers) for item, text in shown if item.answers]
    stated = [
        (answer.confidence, f1(answer.answer, item.answers) >= RIGHT)
        for item, answer in answers
        if answer.confidence is not None
    ]
    return EvidenceFigures(
        passage_recall=fmean(recalls) if recalls else None,
        passage_words=median(len(text.split()) for _, text in shown) if shown else None,
        reliability=[reliability_bin(low, high, stated) for low, high in pairwise(BIN_EDGES)] if stated else [],
    )


def answer_kept(item: Item, plan: Plan, offsets: np.ndarray) -> bool | None:
    """Whether the target computed all tokens of one place in the question's own context where a reference stands.

    None where no reference stands there. offsets: [n, 2] character range of each document token
    """
    start, end = item.evidence
    context = item.collection.text[start:end]
    places = [place for reference in item.answers for place in occurrences(reference, context)]
    if not places or not len(offsets):
        return None
    kept = np.zeros(len(offsets), dtype=bool)
    for span in plan.spans:
        kept[span.start - plan.document[0] : span.end - plan.document[0]] = span.fate is Fate.RECOMPUTE
    # Token i overlaps characters [low, high) where it ends behind low and begins before high.
    ranges = (
        slice(np.searchsorted(offsets[:, 1], start + low, side="right"), np.searchsorted(offsets[:, 0], start + high))
        for low, high in places
    )
    return any(bool(kept[tokens].all()) for tokens in ranges)


def reliability_bin(low: float, high: float, stated: Sequence[tuple[float, bool]]) -> ReliabilityBin:
    """The answers of one range of confidence."""
    inside = [right for confidence, right in stated if low <= confidence < high or confidence == high == BIN_EDGES[-1]]
    return ReliabilityBin(low=low, high=high, n=len(inside), right=sum(inside))

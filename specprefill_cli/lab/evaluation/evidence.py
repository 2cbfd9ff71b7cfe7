"""Whether kept tokens and the passages under answers hold the answer, and whether confidence is reliable."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

import numpy as np

from specprefill_cli.answering.places import occurrences
from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.lab.evaluation.metrics import contains_answer, f1
from specprefill_cli.lab.evaluation.statistics import mean_or_none
from specprefill_cli.lab.tables import Row
from specprefill_cli.prefill.fates import Plan
from specprefill_cli.record import LIKELY, Fate, Record

# An answer counts as right from this F1 on.
RIGHT = 0.5
BIN_EDGES = (0.0, 0.2, 0.4, LIKELY, 1.0)


def evidence_figures(answers: Sequence[tuple[Item, Record]]) -> Row:
    """Figures of the evidence under answers.

    passage_recall: percentage of answerable questions with a reference in their passages; None without passages
    passage_words: median number of words in an answer's passages
    reliability: bins of answers with a confidence from `low` to below `high` (the last bin includes `high`): `n` answers,
        of which `right` are right; empty without confidences
    """
    shown_passages = [
        (item, " ".join(passage.text for passage in answer.passages)) for item, answer in answers if answer.passages
    ]
    stated_confidences = [
        (answer.confidence, f1(answer.answer, item.answers) >= RIGHT)
        for item, answer in answers
        if answer.confidence is not None
    ]
    reliability = []
    for low, high in pairwise(BIN_EDGES) if stated_confidences else ():
        right = [
            right
            for confidence, right in stated_confidences
            if low <= confidence < high or confidence == high == BIN_EDGES[-1]
        ]
        reliability.append({"low": low, "high": high, "n": len(right), "right": sum(right)})
    return {
        "passage_recall": mean_or_none(
            100.0 * contains_answer(text, item.answers) for item, text in shown_passages if item.answers
        ),
        "passage_words": median(len(text.split()) for _, text in shown_passages) if shown_passages else None,
        "reliability": reliability,
    }


def likely_text(evidence: Row) -> str:
    """The number of answers called likely right, and how many of them are right."""
    return "{n}, {right}".format(**evidence["reliability"][-1]) if evidence["reliability"] else ""


def answer_kept(item: Item, plan: Plan, offsets: np.ndarray) -> bool | None:
    """Whether the target computed all tokens of some place where a reference stands; None if there is no such place.

    Places are in the evidence that the row names, else in the question's own context.
    offsets: [n, 2] character range of each document token
    """
    places = [
        (start + low, start + high)
        for start, end in item.facts or (item.evidence,)
        for reference in item.answers
        for low, high in occurrences(reference, item.collection.text[start:end])
    ]
    if not places or not len(offsets):
        return None
    is_kept = kept_tokens(plan, len(offsets))
    return any(bool(is_kept[tokens_of(place, offsets)].all()) for place in places)


def facts_kept(item: Item, plan: Plan, offsets: np.ndarray) -> bool | None:
    """Whether the target computed all tokens of all passages that the row names as evidence; None if it names no passage."""
    if not item.facts or not len(offsets):
        return None
    is_kept = kept_tokens(plan, len(offsets))
    return all(bool(is_kept[tokens_of(fact, offsets)].all()) for fact in item.facts)


def kept_tokens(plan: Plan, count: int) -> np.ndarray:
    """Mask [count] of the document tokens that the target computes."""
    is_kept = np.zeros(count, dtype=bool)
    for span in plan.spans:
        is_kept[span.start - plan.document[0] : span.end - plan.document[0]] = span.fate is Fate.RECOMPUTE
    return is_kept


def tokens_of(place: tuple[int, int], offsets: np.ndarray) -> slice:
    """The tokens that overlap characters [low, high): they end after low and begin before high."""
    low, high = place
    return slice(np.searchsorted(offsets[:, 1], low, side="right"), np.searchsorted(offsets[:, 0], high))

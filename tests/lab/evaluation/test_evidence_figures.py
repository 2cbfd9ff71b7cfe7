import re

import numpy as np
import pytest

from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.lab.evaluation.evidence import answer_kept, evidence_figures, likely_text
from specprefill_cli.prefill.fates import Plan, Span
from specprefill_cli.record import Fate, Passage
from tests.helpers.answers import make_answer
from tests.helpers.samples import collection_of


def answered_item(answer, references, passage, confidence):
    passages = [Passage(document="d", page=1, start=0, end=1, text=passage, importance=1.0)] if passage else []
    item = Item("1", "q", references, collection_of("text"), (0, 0))
    return item, make_answer(answer=answer, passages=passages, confidence=confidence)


def test_figures_count_passages_and_confidence():
    figures = evidence_figures(
        [
            answered_item("42 pence", ("42 pence",), "It costs 42 pence.", 0.9),
            answered_item("a boat", ("42 pence",), "It costs 42 pence.", 0.7),
            answered_item("a boat", ("42 pence",), "It is free today.", 0.1),
            answered_item("not found", (), "Nothing here.", None),
        ]
    )
    assert figures["passage_recall"] == pytest.approx(100 * 2 / 3)
    assert figures["passage_words"] == 4
    assert [(row["n"], row["right"]) for row in figures["reliability"]] == [(1, 0), (0, 0), (0, 0), (2, 1)]
    assert likely_text(figures) == "2, 1"
    without = evidence_figures([answered_item("a", ("a",), "", None)])
    assert without == {"passage_recall": None, "passage_words": None, "reliability": []}
    assert likely_text(without) == ""


def test_an_answer_is_kept_where_the_target_computed_all_tokens_of_one_place_in_its_own_context():
    text = "red fox. blue cat, red fox ran. red fox."
    collection = collection_of(text)
    context = text.index("blue"), text.index(" ran.") + len(" ran.")
    words = [match.span() for match in re.finditer(r"\w+|[.,]", text)]
    offsets = np.array(words)

    def kept(first, last, references=("red fox",)):
        """Whether the answer is kept where the target computes words [first, last) of the document, which begins at 5."""
        item = Item("1", "q", references, collection, context)
        fates = [Fate.DROP] * len(words)
        fates[first:last] = [Fate.RECOMPUTE] * (last - first)
        spans = tuple(Span(5 + number, 6 + number, fate) for number, fate in enumerate(fates))
        return answer_kept(item, Plan(5 + len(words), (5, 5 + len(words)), spans), offsets)

    place = words.index((text.index("red fox ran"), text.index("red fox ran") + 3))
    assert kept(place, place + 2)
    assert not kept(place, place + 1)
    assert not kept(place + 1, place + 3)
    assert not kept(0, 3), "the other contexts' red foxes do not count"
    assert kept(place, place + 2, ("green", "red fox"))
    assert kept(place, place + 2, ("blue cat",)) is False
    assert kept(place, place + 2, ("red",))
    assert kept(0, len(words), ("grey wolf",)) is None
    assert kept(0, len(words), ()) is None

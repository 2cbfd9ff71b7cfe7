import pytest

from specprefill_cli.answering.passages import Passage
from specprefill_cli.documents.collection import Collection
from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.lab.evaluation.evidence import evidence_figures
from tests.helpers.answers import make_answer


def answered(answer, references, passage, confidence):
    passages = [Passage(document="d", page=1, start=0, end=1, text=passage, importance=1.0)] if passage else []
    item = Item("1", "q", references, Collection(()), (0, 0))
    return item, make_answer(answer=answer, passages=passages, confidence=confidence)


def test_figures_count_passages_and_confidence():
    figures = evidence_figures(
        [
            answered("42 pence", ("42 pence",), "It costs 42 pence.", 0.9),
            answered("a boat", ("42 pence",), "It costs 42 pence.", 0.7),
            answered("a boat", ("42 pence",), "It is free today.", 0.1),
            answered("not found", (), "Nothing here.", None),
        ]
    )
    assert figures.passage_recall == pytest.approx(100 * 2 / 3)
    assert figures.passage_words == 4
    assert (figures.likely.n, figures.likely.right) == (2, 1)
    assert [(row.n, row.right) for row in figures.reliability] == [(1, 0), (0, 0), (0, 0), (2, 1)]


def test_without_passages_and_confidence_there_are_no_figures():
    figures = evidence_figures([answered("a", ("a",), "", None)])
    assert (figures.passage_recall, figures.passage_words, figures.reliability, figures.likely) == (
        None,
        None,
        [],
        None,
    )

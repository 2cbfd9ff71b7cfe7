"""SQuAD metrics, intervals, evaluation rows, and question sets."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.lab.evaluation.datasets import Item, read_items
from specprefill_cli.lab.evaluation.metrics import contains_answer, exact_match, f1
from specprefill_cli.lab.evaluation.runner import Configuration, configurations, rows
from specprefill_cli.lab.evaluation.statistics import auroc, mean_interval, ranks
from specprefill_cli.prefill.registry import MODES
from specprefill_cli.settings import Settings
from tests.helpers.answers import make_answer
from tests.helpers.samples import collection_of, write_jsonl


@pytest.mark.parametrize(
    ("answer", "references", "em", "overlap"),
    [
        ("The Denver Broncos.", ["Denver Broncos"], 1, 1),
        ("Denver", ["Denver Broncos"], 0, 2 / 3),
        ("in Denver, Colorado", ["Boston", "Denver Colorado"], 0, 0.8),
        ("", ["x"], 0, 0),
        ("not found", [], 1, 1),
        ("Tuesday", [], 0, 0),
    ],
)
def test_exact_match_and_f1(answer, references, em, overlap):
    assert exact_match(answer, references) == em
    assert f1(answer, references) == pytest.approx(overlap)


def test_contained_answer_must_match_whole_words():
    assert contains_answer("It opens at 9:30 a.m. daily", ["9:30 a.m."])
    assert not contains_answer("The artist", ["art"])


def test_bootstrap_interval_matches_the_standard_error():
    values = np.random.default_rng(0).normal(50, 20, 400)
    mean, low, high = mean_interval(values)
    assert low < mean < high
    # The standard error of the mean is 1.0, so that the interval extends 1.96 to either side.
    assert high - low == pytest.approx(3.9, rel=0.2)


def test_ranks_average_ties():
    assert ranks(torch.tensor([3.0, 1.0, 3.0, 2.0])).tolist() == [3.5, 1.0, 3.5, 2.0]


def test_auroc_is_the_fraction_of_correctly_ordered_pairs_and_none_with_too_few_cases_of_a_class():
    scores = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.9, 0.8, 0.7, 0.6, 0.5, 0.35])
    assert auroc(scores, torch.arange(10) >= 5) == pytest.approx(19 / 25)
    for first in (0, 1, 36):
        assert auroc(torch.arange(40.0), torch.arange(40) >= first) is None


def test_rows_compare_each_configuration_with_full():
    item = Item("a", "?", ("red",), collection_of("x"), (0, 1))
    full, fast = (
        [(item, make_answer(answer=text, ttft_seconds=seconds)) for text, seconds in answers]
        for answers in ((("red", 2.0), ("red", 4.0)), (("red", 1.0), ("blue", 1.0)))
    )
    first, second = rows({Configuration("full"): full, Configuration("select", 0.2, "question"): fast})
    assert [first[key] for key in ("f1", "f1_delta", "ttft_ratio", "right")] == [100, None, None, 2]
    assert [second[key] for key in ("f1", "f1_delta", "ttft_ratio", "right")] == [50, -50, 3.0, 1]


def test_mode_capabilities_decide_which_settings_vary(monkeypatch):
    """With modes whose names no code can know."""
    for name, uses_draft, uses_keep in (("plain", False, False), ("kept", False, True), ("scored", True, False)):
        monkeypatch.setitem(MODES.data, name, SimpleNamespace(uses_draft=uses_draft, uses_keep=uses_keep))
    combinations = configurations(["plain", "kept", "scored", "auto"], [0.1, 0.2], ["a", "b"])
    assert [(choice.mode, choice.keep, choice.scorer) for choice in combinations] == [
        ("plain", None, None),
        *(("kept", keep, None) for keep in (0.1, 0.2)),
        *(("scored", None, scorer) for scorer in "ab"),
        *(("auto", keep, scorer) for scorer in "ab" for keep in (0.1, 0.2)),
    ]
    assert Configuration("kept", 0.1).settings(Settings(keep=0.5)).keep == 0.1
    assert Configuration("plain").settings(Settings(keep=0.5)).keep == 0.5


def test_contexts_are_hidden_among_distractors(tmp_path):
    rows = [{"id": n, "context": f"Paragraph {n}.", "question": "?", "answers": ["x"]} for n in range(30)]
    write_jsonl(path := tmp_path / "q.jsonl.xz", *rows)
    items = read_items(path, limit=10, distractors=4, seed=1)
    assert len(items) == 10
    positions = set()
    for item in items:
        paragraphs = item.collection.text.split("\n\n")
        assert len(paragraphs) == len(set(paragraphs)) == 5
        positions.add(paragraphs.index(f"Paragraph {item.identifier}."))
        assert item.collection.text[slice(*item.evidence)] == f"Paragraph {item.identifier}."
    assert len(positions) > 2
    repeated = read_items(path, limit=10, distractors=4, seed=1)
    assert [item.collection.text for item in repeated] == [item.collection.text for item in items]


def test_rows_without_id_are_named_by_line_number(tmp_path):
    rows = [{"context": f"Paragraph {n}.", "question": "?", "answers": ["x"], "id": None} for n in range(1, 30)]
    write_jsonl(path := tmp_path / "q.jsonl.xz", *rows)
    for item in read_items(path, limit=8, distractors=0, seed=3):
        assert item.collection.text == f"Paragraph {item.identifier}."


def test_document_paths_are_relative_to_the_question_file_which_may_have_a_byte_order_mark(tmp_path):
    (tmp_path / "a.txt").write_text("The gate is green.")
    row = '{"documents": ["a.txt"], "question": "?", "answers": []}\n'
    (tmp_path / "q.jsonl").write_text(row, encoding="utf-8-sig")
    (item,) = read_items(tmp_path / "q.jsonl", None, 0, 0)
    assert "green" in item.collection.text
    assert not item.buried


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("{", "line 1: not JSON"),
        ("[]", "line 1: needs the keys question and answers"),
        ('{"question": "?", "answers": "Paris", "context": "x"}', "line 1: answers must be a list"),
        ('{"question": 3, "answers": [], "context": "x"}', "line 1: question and context must be strings"),
        ("", "holds no questions"),
        (
            '{"id": 7, "question": "?", "answers": [], "context": "x", "evidence": ["y"]}',
            "row 7: its evidence does not",
        ),
        ('{"question": "?", "answers": []}', "line 1: needs one of context, document, documents"),
    ],
)
def test_rejects_faulty_rows_by_line(tmp_path, row, complaint):
    (tmp_path / "q.jsonl").write_text(row)
    with pytest.raises(SpecprefillError, match=complaint):
        read_items(tmp_path / "q.jsonl", None, 0, 0)

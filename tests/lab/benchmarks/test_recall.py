"""`bench recall`: what counts as kept, paired differences, and the command."""

from itertools import pairwise

import pytest
import torch

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.lab.benchmarks.recall import PassageScorer, bench_recall, passage_vectors
from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.lab.evaluation.statistics import wilson_interval
from specprefill_cli.prefill.scorers.base import Scorer, Scores
from specprefill_cli.settings import Settings
from tests.helpers.samples import collection_of, write_jsonl

FILLER = "Nothing of note is said here at all. "
FIRST, SECOND = "The rent is nine pounds.", "Late rent costs two pounds more."
TEXT = f"{FILLER * 40}{FIRST} {FILLER * 40}{SECOND} {FILLER * 40}"
COLLECTION = collection_of(TEXT)


def place(part):
    return TEXT.index(part), TEXT.index(part) + len(part)


class Marks(Scorer):
    """Importance where a text stands."""

    def __init__(self, name, *parts):
        self.name, self.parts = name, parts

    def score(self, request):
        importance = torch.full((len(request.prompt.offsets),), 1e-3)
        for low, high in map(place, self.parts):
            importance[(request.prompt.offsets[:, 1] > low) & (request.prompt.offsets[:, 0] < high)] = 1.0
        return Scores(importance=importance)


@pytest.fixture
def rows(random_session):
    def measure(items, *scorers):
        return bench_recall(random_session, items, scorers, [0.1], Settings(mode="select"), None, lambda _: None)

    return measure


def item(number, answers, facts=()):
    return Item(str(number), "What is owed?", answers, COLLECTION, (0, len(TEXT)), facts=tuple(map(place, facts)))


def test_all_evidence_must_be_kept_and_an_answer_only_there(rows):
    all_facts, last_fact = Marks("all", FIRST, SECOND), Marks("last", SECOND)
    items = [item(1, ("two pounds",), (FIRST, SECOND)), item(2, ("nine pounds",)), item(3, ("a yacht",))]
    first, second = rows(items, all_facts, last_fact)
    assert [first[key] for key in ("n", "recall", "answer")] == [2, 100, 100], "the third answer stands nowhere"
    assert (second["recall"], second["answer"]) == (0, 50)
    assert (first["delta"], second["delta"]) == (None, -100)
    assert second["missed"] == ["1", "2"]
    assert (first["recall_low"], first["recall_high"]) == pytest.approx(tuple(100 * x for x in wilson_interval(2, 2)))


def test_a_set_without_answers_in_its_documents_is_refused(rows):
    with pytest.raises(SpecprefillError, match="no answer stands"):
        rows([item(1, ("a yacht",))], Marks("first", FIRST))


def test_wilsons_interval():
    assert wilson_interval(10, 10) == pytest.approx((0.722, 1.0), abs=1e-3)
    assert wilson_interval(50, 100) == pytest.approx((0.404, 0.596), abs=1e-3)


def test_passages_cover_a_text_by_halves():
    ranges, vectors = passage_vectors(" ".join(f"w{number}" for number in range(230)), "cpu")
    assert len(ranges) == len(vectors) == 4
    assert ranges[-1][1] == len(" ".join(f"w{number}" for number in range(230)))
    assert all(later[0] < earlier[1] for earlier, later in pairwise(ranges))


def test_passages_score_every_token(tiny_session):
    request = tiny_session.request(COLLECTION, "What does lateness cost?", Settings(mode="select", scorer="lexical"))
    importance = PassageScorer().score(request).importance
    assert importance.shape == (request.document_tokens,)
    assert (importance[:-1] > 0).all()


def test_the_command_reads_evidence(call_json, tmp_path):
    row = {"id": 1, "context": TEXT, "question": "What does late rent cost?", "answers": ["two pounds"]}
    path = write_jsonl(tmp_path / "questions.jsonl", row | {"evidence": [SECOND]})
    options = "--scorer lexical,random --keep 0.1 --no-baseline --json"
    first, second = call_json("bench", "recall", path, *options.split())["rows"]
    assert (first["scorer"], first["recall"], first["shown"], first["delta"]) == ("lexical", 100, 100, None)
    assert second["scorer"] == "random"
    assert second["delta"] is not None

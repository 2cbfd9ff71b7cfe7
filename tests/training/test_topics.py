"""Sources of blocks: random places, or a single topic. Facts of a document never contradict each other."""

import itertools
import random

import pytest

from specprefill_cli.training.corpus import ContextQuestions
from specprefill_cli.training.questions import drop_ambiguous
from specprefill_cli.training.synthesis import FactBook, Question
from specprefill_cli.training.topics import Material, SingleTopic


def context(name: str, source: str) -> ContextQuestions:
    return ContextQuestions(name, ((f"What is {name}?", name, 0),), source)


@pytest.fixture(scope="module")
def material():
    passages = [f"passage {number}" for number in range(50)]
    groups = [context(f"s{number}", "squad/a") for number in range(6)]
    groups += [context(f"p{number}", "policyqa/dev") for number in range(20)]
    groups += [context(f"f{number}", "fairytaleqa/train") for number in range(3)]
    return Material(passages, groups, FactBook())


def test_single_topic_takes_consecutive_passages_and_one_domain(material):
    topic = SingleTopic(material, random.Random(1))
    numbers = [int(topic.passage().split()[1]) for _ in range(60)]
    assert all((after - before) % 50 == 1 for before, after in itertools.pairwise(numbers))
    assert len({topic.domain() for _ in range(30)}) == 1


def test_single_topic_takes_consecutive_contexts_until_their_set_ends(material):
    for seed in range(20):
        topic = SingleTopic(material, random.Random(seed))
        names = [topic.group().context for _ in range(12)]
        # Questions of policyqa fit many paragraphs of a topic.
        assert not any(name.startswith("p") for name in names)
        for before, after in itertools.pairwise(names):
            is_last = before in ("s5", "f2")
            assert is_last or (after[0] == before[0] and int(after[1]) == int(before[1]) + 1)


def test_document_gives_a_fact_a_single_value():
    book, rng = FactBook(), random.Random(4)
    for relation in book.relations:
        stated: set = set()
        rounds = [book.statements(relation, 3, rng, stated) for _ in range(40)]
        # A pool of subjects runs out, and a relation without a subject is stated once.
        assert {block.questions[0].shift(7).fact for blocks in rounds for block in blocks} == stated
        assert sum(map(len, rounds)) == len(stated)
        assert relation["subject"] or [len(statements) for statements in rounds] == [1] + [0] * 39


def test_drops_questions_with_two_answers_in_a_document():
    questions = [
        Question("Who leads it?", "Ana", 0),
        Question("who leads it?", "Bo", 40),
        Question("Where?", "here", 9),
        Question("Where?", "here", 90),
    ]
    assert [question.start for question in drop_ambiguous(questions)] == [9, 90]

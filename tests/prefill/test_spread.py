"""The warning about evidence that is spread over the document: for counting and listing, not for looking up."""

import random

import pytest
import torch

from specprefill_cli.prefill.modes import SelectMode
from specprefill_cli.prefill.scorers.base import Scores
from specprefill_cli.prefill.selection import SPREAD, select_scored, spread_ratio, spread_warnings
from specprefill_cli.resources import packaged_folder
from specprefill_cli.settings import Settings
from tests.prefill.helpers import collection_of

PROSE = "\n".join(
    path.read_text(encoding="utf-8") for path in sorted((packaged_folder("sample_docs") / "sources").glob("*.md"))
)
SENTENCES = PROSE.replace("\n", " ").split(". ")[:200]
NAMES = ("Anna Berg", "Tom Hale", "Ruth Okoro", "Ivan Petrov", "Mia Lund", "Omar Said")


def plant(facts, seed):
    """Insert facts at random places of prose."""
    generator = random.Random(seed)
    sentences = list(SENTENCES)
    for fact in facts:
        sentences.insert(generator.randrange(len(sentences)), fact)
    return collection_of(". ".join(sentences))


def warnings(session, collection, question, **settings):
    settings = Settings(**{"mode": "select", "keep": 0.1, "max_new_tokens": 16} | settings)
    result = SelectMode().prefill(session.request(collection, question, settings))
    return [warning for warning in result.warnings if warning.startswith(SPREAD)]


@pytest.mark.parametrize("animal", ["heron", "badger", "whale"])
def test_planted_needles_do_not_warn(tiny_session, animal):
    collection = plant([f"The secret code of the {animal} tower is 7315"], seed=1)
    for keep in (0.05, 0.1, 0.2, None):
        assert not warnings(tiny_session, collection, f"What is the secret code of the {animal} tower?", keep=keep)


@pytest.mark.parametrize("animal", ["heron", "badger", "whale"])
def test_planted_counts_and_lists_warn(tiny_session, animal):
    facts = [f"On day {7 * day} {NAMES[day % 6]} saw a {animal} near the harbour" for day in range(40)]
    collection = plant(facts, seed=2)
    for question in (f"How many people saw a {animal} near the harbour?", f"List all who saw a {animal}."):
        assert warnings(tiny_session, collection, question) == [f"{SPREAD} or use --mode full"]


def test_a_document_beyond_the_context_is_not_sent_to_full(tiny_session):
    collection = collection_of(PROSE * (70_000 // len(PROSE) + 1))
    request = tiny_session.request(collection, "How many?", Settings(mode="select", keep=0.1, max_new_tokens=16))
    assert request.prompt.length > request.target.context
    scores = Scores(importance=torch.ones(request.document_tokens), spread_limit=0.57)
    assert spread_warnings(request, scores, select_scored(request, scores)) == (SPREAD,)


def test_scorers_without_a_spread_limit_do_not_warn(tiny_session):
    facts = [f"On day {7 * day} {NAMES[day % 6]} saw a heron near the harbour" for day in range(40)]
    assert not warnings(tiny_session, plant(facts, 2), "How many people saw a heron near the harbour?", scorer="random")


def test_spread_of_one_peak_and_of_equal_scores():
    peak = torch.full((100,), 0.01)
    peak[40] = 5.0
    assert spread_ratio(peak, 10) < 0.05
    assert spread_ratio(torch.ones(100), 10) == 1.0
    assert spread_ratio(peak, 2) == spread_ratio(peak, 10)
    assert spread_ratio(torch.ones(100), 60) is None
    assert spread_ratio(torch.zeros(100), 10) is None

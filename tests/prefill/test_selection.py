"""Selection of chunks: budgets, order, spans, and the warning about evidence that is spread over the document."""

import itertools
import math
import random
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specprefill_cli.files import packaged_folder
from specprefill_cli.prefill.modes import SelectMode
from specprefill_cli.prefill.scorers.base import AutoBudget, Scores
from specprefill_cli.prefill.selection import (
    SPREAD,
    add_neighbours,
    chunk_scores,
    chunks_for_mass,
    complete_sentences,
    select,
    select_scored,
    spread_ratio,
)
from specprefill_cli.record import Fate
from specprefill_cli.settings import Settings
from tests.helpers.sessions import collection_of


def choose(importance, keep, size=32, prefix=0, suffix=0, **options):
    """Select from a document behind `prefix` tokens and before `suffix`."""
    document = (prefix, prefix + len(importance))
    prompt = document[1] + suffix
    return select(importance, keep=keep, chunk_size=size, prompt_tokens=prompt, document=document, **options)


def kept(selection):
    return [(span.start, span.end) for span in selection.plan.spans if span.fate is Fate.RECOMPUTE]


importances = st.lists(st.floats(0, 1, width=32), min_size=1, max_size=300).map(torch.tensor)


@given(importances, st.integers(1, 50))
def test_chunk_scores_are_token_means(importance, size):
    scores = chunk_scores(importance, size)
    assert len(scores) == math.ceil(len(importance) / size)
    for number, score in enumerate(scores):
        part = importance[number * size : (number + 1) * size]
        assert score.item() == pytest.approx(part.double().mean().item(), abs=1e-6)


@given(importances, st.floats(0.01, 1), st.integers(1, 40), st.integers(0, 30), st.integers(0, 30))
def test_plan_covers_the_document_within_the_budget(importance, keep, size, prefix, suffix):
    document = (prefix, prefix + len(importance))
    prompt = prefix + len(importance) + suffix
    chosen = choose(importance, keep, size, prefix, suffix)
    spans = chosen.plan.spans
    assert spans[0].start == document[0]
    assert spans[-1].end == document[1]
    assert all(
        span.end == following.start and span.fate != following.fate for span, following in itertools.pairwise(spans)
    )
    positions = chosen.plan.kept_positions().tolist()
    assert len(positions) == chosen.plan.kept_tokens
    assert {*range(prefix), *range(document[1], prompt)} <= set(positions)
    # Chunks are not split and at least one is kept, so the plan may exceed the ratio by up to one chunk.
    assert chosen.plan.kept_tokens <= max(keep * prompt, prefix + suffix + keep * len(importance) / 2) + size + 1e-6


@given(importances, st.integers(1, 40))
def test_keep_ratio_of_one_keeps_everything(importance, size):
    plan = choose(importance, 1.0, size, prefix=3, suffix=2).plan
    assert plan.kept_positions().tolist() == list(range(len(importance) + 5))


def test_keeps_the_best_chunks_and_breaks_ties_by_position():
    importance = torch.tensor([0.0, 0.0, 5.0, 5.0, 1.0, 1.0, 1.0, 1.0, 9.0])
    assert kept(choose(importance, 0.7, 2)) == [(2, 9)]
    assert kept(choose(importance, 0.5, 2)) == [(2, 6), (8, 9)]


def test_long_question_does_not_starve_the_document():
    long = choose(torch.rand(6_001), 0.1, prefix=20, suffix=620)
    assert long.plan.kept_tokens - 640 >= 300
    assert choose(torch.empty(0), 0.3, prefix=10, suffix=10).plan.kept_tokens == 20


@given(importances.map(lambda scores: scores + 0.01), st.floats(0.05, 1))
def test_chunks_for_mass_is_the_smallest_sufficient_set(scores, share):
    count = chunks_for_mass(scores, share)
    ordered = scores.sort(descending=True).values.double()
    assert ordered[:count].sum() >= share * ordered.sum() * (1 - 1e-5)
    if count > 1:
        assert ordered[: count - 1].sum() < share * ordered.sum() * (1 + 1e-5)


def test_auto_keep_does_not_grow_with_unimportant_text():
    """A passage keeps as many tokens in ten times as much other text."""

    def count_kept(other_tokens, budget):
        importance = torch.cat([torch.full((64,), 9.0), torch.full((other_tokens,), 0.5)])
        return choose(importance, None, auto_budget=budget).plan.kept_tokens

    tuned = AutoBudget(share=0.5, tokens=640)
    assert count_kept(576, tuned) == count_kept(6336, tuned) == 64
    assert count_kept(6336, AutoBudget(share=0.5)) > 1000


def test_chunks_gain_score_from_their_neighbours():
    scores = torch.tensor([0.0, 4.0, 1.0, 0.0, 2.0])
    assert add_neighbours(scores, 0.5).tolist() == [2.0, 4.5, 3.0, 1.5, 2.0]
    importance = scores.repeat_interleave(2)
    plain, lifted = (choose(importance, 0.45, 2, neighbours=weight).chunks for weight in (0.0, 0.5))
    assert (plain.tolist(), lifted.tolist()) == ([1, 2, 4], [0, 1, 2])


def test_warns_when_all_scores_are_zero():
    assert "scored 0" in choose(torch.zeros(200), 0.5, prefix=10, suffix=10).warnings[0]
    assert choose(torch.rand(200), 0.5, prefix=10, suffix=10).warnings == ()


SENTENCES = "The lease began in May. The deposit is nine hundred pounds and is returned within ten days. Pets may stay."


@pytest.mark.parametrize("blank", [r"\S+ ?", r" ?\S+"], ids=["before", "behind"])
@pytest.mark.parametrize(
    ("tokens", "completed"),
    [((8, 11), (5, 17)), ((3, 7), (0, 17)), ((5, 17), (5, 17)), ((6, 16), (5, 17)), ((0, 20), (0, 20))],
)
def test_cut_sentences_are_completed_wherever_tokens_have_their_blanks(blank, tokens, completed):
    offsets = np.array([match.span() for match in re.finditer(blank, SENTENCES)])
    assert complete_sentences(SENTENCES, offsets, *tokens) == completed


def test_a_sentence_begins_with_all_tokens_of_its_first_character():
    offsets = np.array([(0, 1), (1, 2), (2, 3), (2, 3), (2, 3), (3, 4), (4, 5), (4, 5)])
    assert complete_sentences("家。門は緑", offsets, 5, 8) == (2, 8)
    assert complete_sentences("a. \n b", np.array([(0, 2), (2, 5), (5, 6)]), 1, 2) == (1, 2)


def test_an_end_far_from_its_sentence_stays():
    text = "Start " + "a " * 900 + "end."
    offsets = np.array([match.span() for match in re.finditer(r"\S+ ?", text)])
    assert complete_sentences(text, offsets, 450, 482) == (450, 482)


def test_widened_chunks_share_the_budget_of_chunks():
    importance = torch.zeros(320)
    importance[64:96], importance[192:224] = 2.0, 1.0
    assert kept(choose(importance, 0.2)) == [(64, 96), (192, 224)]
    # The first widened chunk leaves no room for a complete second one.
    assert kept(choose(importance, 0.2, widen=lambda start, end: (start - 10, end + 10))) == [(54, 106)]


PROSE = "\n".join(
    path.read_text(encoding="utf-8") for path in sorted((packaged_folder("sample_docs") / "sources").glob("*.md"))
)
PROSE_SENTENCES = PROSE.replace("\n", " ").split(". ")[:200]
NAMES = ("Anna Berg", "Tom Hale", "Ruth Okoro", "Ivan Petrov", "Mia Lund", "Omar Said")


def plant(facts, seed):
    generator = random.Random(seed)
    sentences = list(PROSE_SENTENCES)
    for fact in facts:
        sentences.insert(generator.randrange(len(sentences)), fact)
    return collection_of(". ".join(sentences))


def sightings(animal):
    return plant([f"On day {7 * day} {NAMES[day % 6]} saw a {animal} near the harbour" for day in range(40)], seed=2)


def warnings(session, collection, question, **settings):
    settings = Settings(**{"mode": "select", "keep": 0.1, "max_new_tokens": 16} | settings)
    result = SelectMode().prefill(session.request(collection, question, settings))
    return [warning for warning in result.warnings if warning.startswith(SPREAD)]


@pytest.mark.parametrize("animal", ["heron", "badger", "whale"])
def test_planted_counts_and_lists_warn_and_needles_do_not(tiny_session, animal):
    for question in (f"How many people saw a {animal} near the harbour?", f"List all who saw a {animal}."):
        assert warnings(tiny_session, sightings(animal), question) == [f"{SPREAD} or use --mode full"]
        # A scorer without a limit.
        assert not warnings(tiny_session, sightings(animal), question, scorer="random")
    collection = plant([f"The secret code of the {animal} tower is 7315"], seed=1)
    for keep in (0.05, 0.1, 0.2, None):
        assert not warnings(tiny_session, collection, f"What is the secret code of the {animal} tower?", keep=keep)


def test_a_document_beyond_the_context_is_not_sent_to_full(tiny_session):
    collection = collection_of(PROSE * (70_000 // len(PROSE) + 1))
    request = tiny_session.request(collection, "How many?", Settings(mode="select", keep=0.1, max_new_tokens=16))
    assert request.prompt.length > request.target.context
    scores = Scores(importance=torch.ones(request.document_tokens), spread_limit=0.57)
    assert SPREAD in select_scored(request, scores).warnings


def test_spread_of_one_peak_and_of_equal_scores():
    peak = torch.full((100,), 0.01)
    peak[40] = 5.0
    assert spread_ratio(peak, 10) < 0.05
    assert spread_ratio(torch.ones(100), 10) == 1.0
    assert spread_ratio(peak, 2) == spread_ratio(peak, 10)
    assert spread_ratio(torch.ones(100), 60) == spread_ratio(torch.zeros(100), 10) == 0

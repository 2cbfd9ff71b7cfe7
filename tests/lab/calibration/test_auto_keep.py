"""Tuning the mass of `--keep auto` by answers: the choice itself, and a run on a random pair."""

from dataclasses import replace

import pytest

from specprefill_cli.documents.document import Collection, one_page_document
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.lab.calibration.auto_keep import (
    AUTO_KEEP,
    MASSES,
    AutoKeep,
    MassResult,
    mass_for_answers,
    sessions_by_mass,
    tune_auto_keep,
    tuning_items,
)
from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.lab.evaluation.runner import ask
from specprefill_cli.lab.session import short_answers
from specprefill_cli.settings import Settings

SETTINGS = Settings(scorer="question", mode="select", look_ahead=1, chunk_size=8)
TEXTS = (
    "The north gate opens at nine. Tickets cost four euros. The keeper lives by the old mill near the river. " * 6,
    "Rain fell on the harbour all day. The ferry left at noon with twelve crates of apples on its deck. " * 7,
)


def item(number, text, answer="nine"):
    collection = Collection((one_page_document("doc", text, "text/plain"),))
    return Item(str(number), f"When, number {number}?", (answer,), collection, (0, len(text)))


def document_end(session, item):
    """Return the number of tokens up to the end of the document."""
    return session.request(item.collection, item.question, SETTINGS).prompt.document[1]


def mass_results(f1):
    """Build results from a mapping of mass to F1."""
    return [MassResult(mass, value, 0.5) for mass, value in f1.items()]


@pytest.mark.parametrize(
    ("full", "figures", "mass"),
    [
        (40, {0.05: 12.0, 0.1: 39.7, 0.3: 40.0, 0.6: 30.0}, 0.1),
        (40, {0.05: 12.0, 0.1: 39.5, 0.3: 45.0, 0.6: 30.0}, 0.3),
        (50, {0.05: 40.0, 0.1: 45.0, 0.3: 49.5, 0.6: 49.9}, 0.3),
        # No mass answers as well as `full`: the best one, or the largest of equally good ones.
        (50, {0.05: 20.0, 0.1: 45.0, 0.3: 40.0}, 0.1),
        (50, {0.05: 0.0, 0.1: 0.0, 0.3: 0.0}, 0.3),
        # Of equally good masses, the smallest.
        (40, {0.05: 10.0, 0.1: 40.0, 0.3: 40.0}, 0.1),
        (25, {0.05: 25.0, 0.1: 25.0, 0.3: 25.0}, 0.05),
        # Nothing was answered correctly, so there is no choice.
        (0, {0.05: 0.0, 0.1: 0.0}, None),
    ],
)
def test_chooses_smallest_mass_that_answers_as_well_as_full(full, figures, mass):
    assert mass_for_answers(full, mass_results(figures)) == mass
    assert mass_for_answers(full, mass_results(figures)[::-1]) == mass


def test_applied_heads_record_evidence_and_never_lower_the_mass(random_session):
    heads = replace(random_session.pair.scoring_heads, auto_mass=0.07, evidence={"questions": 40})
    outcome = AutoKeep(9, 31.234, (MassResult(0.05, 30.0, 0.1), MassResult(0.1, 31.5, 0.25)), 0.1)
    tuned = outcome.applied(heads)
    assert tuned.auto_mass == 0.1
    assert tuned.evidence == {
        "questions": 40,
        "auto_questions": 9,
        "auto_f1_full": 31.23,
        "auto_f1_0.05": 30.0,
        "auto_kept_0.05": 0.1,
        "auto_f1_0.1": 31.5,
        "auto_kept_0.1": 0.25,
    }
    assert replace(outcome, mass=0.05).applied(heads).auto_mass == 0.07
    assert replace(outcome, mass=None).applied(heads).auto_mass == 0.07


def test_tuning_asks_every_mass_and_restores_the_session(random_session):
    """The answers at mass 0.3 serve as the references, so that mass 0.3 must score 100."""
    pair = random_session.pair
    heads = pair.scoring_heads
    pair.scoring_heads = None
    reference = sessions_by_mass(random_session, heads)[0.3]
    items = []
    for number, text in enumerate(TEXTS):
        question = item(number, text)
        answer = ask(reference, question, AUTO_KEEP.settings(short_answers(SETTINGS)))
        items.append(replace(question, answers=(answer.answer,)))
    token_counts, steps = [], []
    shortest = min(document_end(random_session, entry) for entry in items)
    hook = pair.draft.model.model.layers[0].register_forward_hook(
        lambda _, inputs, __: token_counts.append(inputs[0].shape[1])
    )
    outcome = tune_auto_keep(random_session, heads, items, SETTINGS, steps.append)
    hook.remove()
    assert steps == ["answering: 0 of 2", "answering: 1 of 2"]
    assert outcome.questions == 2
    assert [result.mass for result in outcome.results] == list(MASSES)
    f1 = {result.mass: result.f1 for result in outcome.results}
    assert f1[0.3] == 100
    # A random target answers differently on different chunks; otherwise the masses could not be told apart.
    assert min(f1.values()) < 99
    assert outcome.mass == min(mass for mass in MASSES if f1[mass] >= 0.99 * outcome.full)
    kept = [result.kept_ratio for result in outcome.results]
    assert kept == sorted(kept)
    assert kept[0] < kept[-1] < 1
    assert pair.scoring_heads is None
    assert random_session.cache is None
    # The draft reads each document once, for the first mass.
    assert sum(tokens >= shortest for tokens in token_counts) == len(items)


def test_tuning_items_are_held_out_answerable_and_fit_the_target(random_session):
    short, long = TEXTS
    items = [item(number, short) for number in range(6)]
    # An item whose answer is not in its document belongs to neither half.
    items.insert(1, item(9, short, answer="a zebra"))
    items[4] = item(7, long * 2, answer="noon")
    chosen = [question.identifier for question in tuning_items(random_session, items, SETTINGS, 60)]
    assert chosen == ["1", "7", "5"]
    assert [question.identifier for question in tuning_items(random_session, items, SETTINGS, 2)] == ["1", "7"]
    longest = document_end(random_session, items[4])
    random_session.pair.target.context = longest
    assert [question.identifier for question in tuning_items(random_session, items, SETTINGS, 60)] == ["1", "5"]


def test_rejects_tuning_without_questions(random_session):
    with pytest.raises(SpecprefillError, match="no questions to tune --keep auto"):
        tune_auto_keep(random_session, random_session.pair.scoring_heads, [], SETTINGS, lambda _: None)

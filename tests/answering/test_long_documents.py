"""Questions about documents beyond the context of both models: answers, figures, and modes that do not fit."""

from pathlib import Path

import pytest

from specprefill_cli.answering.tasks import compare_modes, dry_run, retrieve
from specprefill_cli.errors import PromptTooLong
from specprefill_cli.reporting.html import render_page
from specprefill_cli.reporting.table import comparison_table, plan_view
from specprefill_cli.settings import Settings
from tests.helpers.output import text_of
from tests.helpers.samples import MANUAL, collection_of
from tests.prefill.helpers import shorten_context

TEXT = "The north gate opens at nine. Tickets cost four euros. The keeper lives by the mill near the river. " * 60
PROSE = Path(MANUAL).read_text(encoding="utf-8")
NEEDLE = "The secret code of the north tower is 7315. "
COLLECTION = collection_of(TEXT)
SETTINGS = Settings(mode="select", scorer="heads", keep=0.1, max_new_tokens=4)


def varied_prose(copies):
    """Copies of the manual, with different numbers in each."""
    return "".join(PROSE.replace("1", str(copy % 10)).replace("2", str(copy // 10)) for copy in range(copies))


@pytest.fixture
def session(random_session):
    """A pair of random models with a context of 600 tokens, a third of the document's."""
    return shorten_context(random_session, 600)


@pytest.mark.parametrize("speculation", [{"speculate": "off"}, {"proposer": "draft"}, {"proposer": "lookup"}, {}])
def test_the_answer_is_the_same_with_and_without_speculation(session, speculation):
    plain = session.ask(COLLECTION, "When?", SETTINGS.varied(speculate="off", max_new_tokens=24)).finished()
    speculated = session.ask(COLLECTION, "When?", SETTINGS.varied(max_new_tokens=24, **speculation)).finished()
    assert speculated.answer == plain.answer
    assert not any("nothing is proposed" in warning for warning in speculated.warnings)


def test_compare_shows_modes_that_do_not_fit(session):
    comparison = compare_modes(session, COLLECTION, "When?", SETTINGS, ("full", "select", "draft-kv"))
    assert [column.mode for column in comparison.answers] == ["select"]
    assert list(comparison.misfits) == ["full", "draft-kv"]
    assert text_of(comparison_table(comparison)).count("does not fit") >= 2
    assert "use --mode select" in comparison.to_json()["does_not_fit"]["full"]
    assert render_page(COLLECTION, comparison).count("does not fit") >= 2
    with pytest.raises(PromptTooLong, match="use --mode select"):
        compare_modes(session, COLLECTION, "When?", SETTINGS, ("full", "hybrid"))


def test_plan_says_that_full_does_not_fit(session):
    run = dry_run(session, COLLECTION, "When?", SETTINGS)
    assert run.auto["mode"] == "select"
    assert run.kept_tokens <= 600 - SETTINGS.max_new_tokens
    assert run.full_ttft_seconds is None
    assert text_of(plan_view(run)).count("does not fit") == 1


def test_passages_are_found_however_small_the_targets_context(session):
    retrieval = retrieve(session, COLLECTION, "When?", SETTINGS.varied(keep=0.6))
    assert retrieval.kept_words > 0.5 * retrieval.document_words


def needle_answer(session, copies, place, **settings):
    """Hide a needle at the share `place` of varied prose. Returns the answer, and whether the needle was kept."""
    prose = varied_prose(copies)
    cut = prose.index(". ", int(place * len(prose))) + 2
    text = prose[:cut] + NEEDLE + prose[cut:]
    stream = session.ask(collection_of(text), "What is the secret code of the north tower?", Settings(**settings))
    token = int((stream.request.prompt.offsets[:, 0] < cut + len(NEEDLE) // 2).sum())
    kept = stream.prefilled.plan.kept_positions()
    return stream.finished(), stream.request.prompt.document[0] + token in kept


@pytest.mark.slow
def test_finds_needles_in_twice_the_context(tiny_session):
    outcomes = [needle_answer(tiny_session, copies=14, place=place, keep=0.028) for place in (0.1, 0.5, 0.9)]
    for answer, kept in outcomes:
        assert answer.prompt_tokens > 2 * 16_384
        assert answer.kept_tokens < 1_200
        assert (answer.mode, answer.positions, kept) == ("select", "compact", True)
    # The small target misreads a digit now and then.
    assert sum(answer.answer == "7315" for answer, _ in outcomes) >= 2

"""The mode that `auto` chooses, and its reason: by the cost of a question with the present caches."""

import pytest

from specprefill_cli.prefill.auto_mode import automatic_mode
from specprefill_cli.prefill.registry import MODES
from specprefill_cli.settings import Settings
from tests.helpers.sessions import GATES, collection_of
from tests.prefill.helpers import caching

TEXT = GATES * 60
COLLECTION = collection_of(TEXT)
SETTINGS = Settings(keep=0.3, max_new_tokens=1)


@pytest.fixture
def session(tiny_session):
    return caching(tiny_session)


def ask_before(session, mode):
    session.ask(COLLECTION, "When does the gate open?", SETTINGS.varied(mode=mode)).finished()
    return session


def choice(session, text=TEXT):
    collection = collection_of(text)
    request = session.request(collection, "What do tickets cost?", SETTINGS)
    return automatic_mode(request)[0], {name: MODES[name].cost(request) for name in ("full", "select")}


@pytest.mark.parametrize(("mode", "cold_mode", "share"), [("full", "select", 0.2), ("select", "full", 1.0)])
def test_a_mode_that_finds_the_document_cached_costs_less(session, mode, cold_mode, share):
    _, cold = choice(session)
    chosen, warm = choice(ask_before(session, mode))
    assert chosen == mode
    assert warm[mode] < share * cold[mode]
    assert warm[cold_mode] == cold[cold_mode]


def test_with_all_caches_warm_auto_answers_as_cheaply_as_it_can(session):
    mode, warm = choice(ask_before(ask_before(session, "select"), "full"))
    assert mode == min(warm, key=warm.get) == "full"
    stream = session.ask(COLLECTION, "What do tickets cost?", SETTINGS.varied(mode="auto"))
    assert stream.finished().reused == ["document tokens", "target document KV"]


def test_a_cold_question_takes_select_and_another_document_is_cold(session):
    mode, cold = choice(session)
    assert mode == "select"
    assert choice(ask_before(session, "full"), TEXT.replace("nine", "ten"))[1] == pytest.approx(cold, rel=0.01)


def test_layers_or_windows_that_are_missing_are_not_cached(session):
    ask_before(session, "select")
    for changed in ({"scorer": "question"}, {"draft_window": "off"}):
        request = session.request(COLLECTION, "Who?", SETTINGS.varied(mode="select", **changed))
        assert MODES["select"].cost(request) == MODES["select"].cost(request.without_caches())

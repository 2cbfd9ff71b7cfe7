"""Confirmations in the engine: their events, the KV that they leave, and a Ctrl-C that loses nothing."""

import pytest

from specprefill_cli.decoding.runner import SequenceRunner
from specprefill_cli.engine.local import LocalEngine
from specprefill_cli.engine.request import Done, Piece, Provisional, Request, Started
from specprefill_cli.prefill.prefix_cache import TARGET_PREFIX, DocumentCache
from specprefill_cli.record import UNCONFIRMED
from specprefill_cli.settings import Settings
from tests.helpers.asker import Asker
from tests.helpers.samples import collection_of

TEXT = "The north gate opens at nine. Tickets cost four euros. The keeper lives by the mill near the river. " * 12
CONFIRM = Settings(mode="select", scorer="lexical", keep=0.2, max_new_tokens=12, prefill_chunk=64, confirm=True)
FULL = CONFIRM.varied(mode="full", confirm=False, speculate="off")


def make_document():
    return collection_of(TEXT)


def make_asker(session, **options):
    return Asker(session, CONFIRM, make_document(), **options)


@pytest.fixture
def session(random_session, monkeypatch):
    """A session without stop tokens, so that answers have their full length."""
    monkeypatch.setattr(random_session.pair.target, "stop_tokens", frozenset())
    random_session.warm_up(CONFIRM)
    random_session.warm_up(FULL)
    return random_session


def test_the_final_answer_follows_the_provisional_one(session):
    asker = make_asker(session)
    asker.submit("a")
    asker.finish()
    answer = asker.record("a")
    assert answer.answer == session.ask(make_document(), "Who?", FULL).finished().answer
    assert answer.confirmed == (answer.provisional_answer == answer.answer)
    first, *pieces, provisional, done = asker.event_types("a")
    assert (first, set(pieces), provisional, done) == (Started, {Piece}, Provisional, Done)


def test_later_questions_reuse_the_kv_of_a_confirmation(session):
    asker = make_asker(session.with_cache(DocumentCache()))
    asker.submit("a")
    asker.finish()
    asker.submit("b", "Why at nine?", FULL)
    asker.finish()
    assert TARGET_PREFIX in asker.record("b").reused
    assert asker.record("b").answer == session.ask(make_document(), "Why at nine?", FULL).finished().answer


def test_ctrl_c_in_a_confirmation_keeps_the_provisional_answer(session, monkeypatch):
    expected = session.ask(make_document(), "Who?", CONFIRM.varied(confirm=False)).finished()
    engine, provisional = LocalEngine(session, concurrency=1), []
    read = SequenceRunner.read

    def interrupt(*arguments):
        # The verifying pass follows full prefill.
        if provisional:
            raise KeyboardInterrupt
        return read(*arguments)

    monkeypatch.setattr(SequenceRunner, "read", interrupt)
    for event in engine.ask(Request(documents=make_document(), question="Who?", settings=CONFIRM)):
        provisional += [event.result] if isinstance(event, Provisional) else []
    assert isinstance(event, Done)
    assert (provisional[0].confirmed, provisional[0].answer) == (None, expected.answer)
    answer = event.result
    assert (answer.answer, answer.confirmed, answer.stopped) == (expected.answer, None, "interrupt")
    assert answer.warnings[-1] == f"interrupted: {UNCONFIRMED}"

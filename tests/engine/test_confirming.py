"""Confirmations beside other answers: results, priorities, and a Ctrl-C that loses nothing."""

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
QUESTIONS = ("When does it open?", "What do tickets cost?", "Who lives there?", "Why at nine?")
CONFIRM = Settings(mode="select", scorer="lexical", keep=0.2, max_new_tokens=12, prefill_chunk=64, confirm=True)
FULL = CONFIRM.varied(mode="full", confirm=False, speculate="off")


def make_document(number=0):
    return collection_of(f"House {number}. {TEXT}")


def make_asker(session, **options):
    return Asker(session, CONFIRM, make_document(), **options)


@pytest.fixture
def session(random_session, monkeypatch):
    """A session without stop tokens, so that answers have their full length."""
    monkeypatch.setattr(random_session.pair.target, "stop_tokens", frozenset())
    random_session.warm_up(CONFIRM)
    random_session.warm_up(FULL)
    return random_session


def test_answers_confirmed_beside_each_other_are_those_of_full_prefill(session):
    asker = make_asker(session.with_cache(DocumentCache()))
    for number, question in enumerate(QUESTIONS):
        asker.submit(question, question=question, documents=make_document(number % 2))
    asker.finish()
    for number, question in enumerate(QUESTIONS):
        answer = asker.record(question)
        assert answer.answer == session.ask(make_document(number % 2), question, FULL).finished().answer
        assert answer.confirmed == (answer.provisional_answer == answer.answer)
        event_types = asker.event_types(question)
        assert [event_types[0], *event_types[-2:]] == [Started, Provisional, Done]
        assert set(event_types[1:-2]) == {Piece}


def test_first_tokens_and_decode_steps_come_before_a_confirmation(session):
    asker = make_asker(session)
    asker.submit("a")
    asker.step_until("a", Provisional)
    asker.engine.step()
    asker.submit("b", settings=CONFIRM.varied(confirm=False))
    asker.finish()
    order = [name for name, event in asker.log if isinstance(event, Done)]
    assert order == ["b", "a"]
    assert asker.record("a").answer == session.ask(make_document(), "Who?", FULL).finished().answer


def test_confirmations_take_no_place_and_hold_one_full_prompt_at_a_time(session):
    asker = make_asker(session, concurrency=2)
    tickets = [asker.submit(number, documents=make_document(number)) for number in range(4)]
    prompts_held = set()
    while asker.engine.busy:
        asker.engine.step()
        running = [ticket for ticket in tickets if ticket in asker.engine.running]
        prompts_held.add(sum(ticket.confirming and ticket.bytes > 0 for ticket in running))
    assert prompts_held == {0, 1}
    ends = [name for name, event in asker.log if isinstance(event, Done)]
    provisional = [name for name, event in asker.log if isinstance(event, Provisional)]
    assert sorted(ends) == sorted(provisional) == [0, 1, 2, 3]


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


def test_cancelling_a_confirmation_leaves_other_answers_complete(session):
    asker = make_asker(session)
    ticket = asker.submit("a")
    asker.submit("b", question="Why?")
    asker.step_until("a", Provisional)
    asker.engine.cancel(ticket)
    asker.finish()
    assert asker.record("a").confirmed is None
    assert asker.record("b").answer == session.ask(make_document(), "Why?", FULL).finished().answer

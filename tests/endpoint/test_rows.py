"""Rows of a batch: several at the server at once, and none that waits for another."""

import threading
from queue import SimpleQueue

import pytest

from specprefill_cli.endpoint.session import CAPACITY, EndpointEngine
from specprefill_cli.engine.request import LAST, Cancelled, Request
from specprefill_cli.settings import Settings
from tests.helpers.upstream import piece, says, stream_parts


@pytest.fixture
def ask(session, upstream, tmp_path):
    """Ask a question; returns what cancels it."""
    engine, outcomes, gate = EndpointEngine(session), SimpleQueue(), tmp_path / "gate.txt"
    gate.write_text("The gate is open from nine to five. " * 20)

    def run(question):
        settings = Settings(target=upstream.target, mode="full")

        def take(event):
            if isinstance(event, LAST):
                outcomes.put((question, event))

        ticket = engine.submit(Request(documents=(str(gate),), question=question, settings=settings), take)
        return lambda: engine.cancel(ticket)

    run.engine, run.outcomes = engine, outcomes
    return run


def test_the_server_has_several_rows_at_once(ask, upstream):
    all_there = threading.Barrier(CAPACITY, timeout=60)

    def reply(handler):
        all_there.wait()
        says("42")(handler)

    upstream.script = lambda _body: reply
    assert ask.engine.capacity == CAPACITY
    for number in range(CAPACITY):
        ask(f"What has number {number}?")
    answered = dict(ask.outcomes.get() for _ in range(CAPACITY))
    assert {question: done.result.answer for question, done in answered.items()} == dict.fromkeys(answered, "42")
    assert len(answered) == CAPACITY


def test_a_row_that_is_given_up_ends_with_the_next_piece(ask, upstream):
    given_up = threading.Event()

    def reply(handler):
        stream_parts(piece("42 "))(handler)
        given_up.wait(60)
        handler.wfile.write(piece("pence") * 2)

    upstream.script = lambda _body: reply
    cancel = ask("What?")
    cancel()
    given_up.set()
    assert isinstance(ask.outcomes.get()[1].error, Cancelled)

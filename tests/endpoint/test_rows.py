"""Rows of a batch: several at the server at once, and none that waits for another."""

import threading
from queue import SimpleQueue

import pytest

from specprefill_cli.endpoint.session import CAPACITY, EndpointEngine
from specprefill_cli.engine.request import LAST, Cancelled, Request
from specprefill_cli.settings import Settings
from tests.helpers.upstream import piece, says, stream_parts


@pytest.fixture
def gate(tmp_path):
    path = tmp_path / "gate.txt"
    path.write_text("The gate is open from nine to five. " * 20)
    return str(path)


@pytest.fixture
def outcomes():
    return SimpleQueue()


@pytest.fixture
def ask(session, upstream, gate, outcomes):
    """Ask a question; returns what cancels it."""
    engine = EndpointEngine(session)

    def run(question):
        settings = Settings(target=upstream.target, mode="full")

        def take(event):
            if isinstance(event, LAST):
                outcomes.put((question, event))

        ticket = engine.submit(Request(documents=(gate,), question=question, settings=settings), take)
        return lambda: engine.cancel(ticket)

    run.engine = engine
    return run


def test_the_server_has_several_rows_at_once(ask, upstream, outcomes):
    all_there = threading.Barrier(CAPACITY, timeout=60)

    def reply(handler):
        all_there.wait()
        says("42")(handler)

    upstream.script = lambda _body: reply
    assert ask.engine.capacity == CAPACITY
    for number in range(CAPACITY):
        ask(f"What has number {number}?")
    answered = dict(outcomes.get() for _ in range(CAPACITY))
    assert {question: done.result.answer for question, done in answered.items()} == dict.fromkeys(answered, "42")
    assert len(answered) == CAPACITY


def test_a_row_that_is_given_up_ends_with_the_next_piece(ask, upstream, outcomes):
    given_up = threading.Event()

    def reply(handler):
        stream_parts(piece("42 "))(handler)
        given_up.wait(60)
        handler.wfile.write(piece("pence") * 2)

    upstream.script = lambda _body: reply
    cancel = ask("What?")
    cancel()
    given_up.set()
    assert isinstance(outcomes.get()[1].error, Cancelled)

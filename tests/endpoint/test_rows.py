"""Rows of a batch: several at the server at once, and none that waits for another."""

import threading
from queue import SimpleQueue

import pytest

from specprefill_cli.batching.engine_rows import EngineRows
from specprefill_cli.batching.rows import Row
from specprefill_cli.documents import read_collection
from specprefill_cli.endpoint.session import CAPACITY, EndpointEngine
from specprefill_cli.engine.request import Cancelled
from specprefill_cli.settings import Settings
from tests.helpers.upstream import piece, says, stay_silent, stream_parts


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
    """Ask a row, which is given by its question; returns what cancels it."""
    settings = Settings(target=upstream.target, mode="full")
    rows = EngineRows(EndpointEngine(session), settings, read_collection([gate]))

    def run(question, **values):
        return rows.ask(Row(question, question, **values), lambda outcome: outcomes.put((question, outcome)))

    run.rows = rows
    return run


def test_the_server_has_several_rows_at_once(ask, upstream, outcomes):
    all_there = threading.Barrier(CAPACITY, timeout=60)

    def reply(handler):
        all_there.wait()
        says("42")(handler)

    upstream.script = lambda _body: reply
    assert ask.rows.capacity == CAPACITY
    for number in range(CAPACITY):
        ask(f"What has number {number}?")
    answered = dict(outcomes.get() for _ in range(CAPACITY))
    assert {question: record["answer"] for question, record in answered.items()} == dict.fromkeys(answered, "42")
    assert len(answered) == CAPACITY


def test_a_row_brings_its_documents_and_settings(ask, upstream, outcomes, tmp_path):
    (tmp_path / "fee.txt").write_text("The fee is 42 pence a mile.")
    ask("What?", documents=(str(tmp_path / "fee.txt"),), overrides={"max_new_tokens": 7}, ignored=("colour",))
    _, record = outcomes.get()
    assert "The fee is 42 pence a mile." in upstream.sent
    assert upstream.bodies[0]["max_tokens"] == 7
    assert record["answer"] == "42 pence"
    assert "colour" in record["warnings"][-1]


def test_a_row_that_is_given_up_holds_nothing_up(ask, upstream, outcomes):
    received = threading.Event()

    def hang(handler):
        received.set()
        stay_silent(handler)

    upstream.script = lambda body: hang if "hangs" in body["messages"][-1]["content"] else says("42")
    cancel = ask("What hangs?")
    assert received.wait(60)
    ask("What answers?")
    question, record = outcomes.get()
    assert (question, record["answer"]) == ("What answers?", "42")
    cancel()


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
    assert isinstance(outcomes.get()[1], Cancelled)

"""Rows answered by an engine: records, order, errors, failed devices, cancelling, and the end."""

import json
import socket
import tempfile
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue

import pytest
import torch

from specprefill_cli.answering.session import Session
from specprefill_cli.batching.loop import Batch, BatchEnded
from specprefill_cli.batching.rows import read_once
from specprefill_cli.documents.document import Collection, one_page_document
from specprefill_cli.engine import local
from specprefill_cli.engine.http import HttpEngine
from specprefill_cli.engine.local import LocalEngine
from specprefill_cli.engine.request import Cancelled, Request
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.settings import Settings

COLLECTION = Collection(
    (one_page_document("a.txt", "The gate opens at nine. The mill is by the river. " * 20, "text/plain"),)
)
SETTINGS = Settings(mode="full", max_new_tokens=6)
ROWS = [
    {"id": number, "question": f"When is number {number}?", "max_new_tokens": 1 + 5 * (number % 2)}
    for number in range(9)
]


@pytest.fixture(autouse=True)
def no_network():
    """Allow these tests to use a socket on this machine."""


@pytest.fixture
def session(random_session):
    random_session.warm_up(SETTINGS)
    return random_session


def run(session, rows, write=None, **options):
    written = []
    lines = [json.dumps(row).encode() + b"\n" for row in rows]
    with closing(LocalEngine(session, concurrency=4, read=lambda _names: COLLECTION)) as engine:
        engine.start()
        Batch(engine=engine, settings=SETTINGS, documents=("a.txt",), write=write or written.append, **options).run(
            lines
        )
    assert not engine.thread.is_alive()
    return written


def test_records_equal_those_of_single_questions_and_keep_their_order(session):
    written = run(session, ROWS)
    assert [record["id"] for record in written] == list(range(9))
    expected = [
        session.ask(COLLECTION, row["question"], SETTINGS.varied(max_new_tokens=row["max_new_tokens"]))
        .finished()
        .answer
        for row in ROWS
    ]
    assert [record["answer"] for record in written] == expected


def test_unordered_records_come_as_they_are_done(session):
    rows = [{**ROWS[0], "max_new_tokens": 40}, *ROWS[1:]]
    written = run(session, rows, ordered=False)
    assert sorted(record["id"] for record in written) == list(range(9))
    assert written[0]["id"] != 0


def test_a_row_that_cannot_be_asked_has_an_error_in_its_place(session):
    rows = [ROWS[0], {"id": "mode", "question": "Who?", "mode": "fast"}, {"id": "k", "question": "Who?", "keep": 7}]
    first, second, third = run(session, rows)
    assert (first["id"], second["id"], third["id"]) == (0, "mode", "k")
    assert "error" not in first
    assert "fast" in second["error"]["message"]
    assert "row k: keep 7" in third["error"]["message"]


def test_a_failed_device_ends_the_batch(session, monkeypatch):
    def fail(_session, _prepared):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(Session, "prefill", fail)
    with pytest.raises(BatchEnded, match=r"the device failed \(CUDA error.* --resume"):
        run(session, ROWS)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_that_has_ended_ends_the_batch(session, monkeypatch):
    """Rows in flight get the engine's error. Later rows are left to another run."""
    monkeypatch.setattr(LocalEngine, "admit", lambda _engine: 1 / 0)
    with pytest.raises(BatchEnded, match=r"the engine has ended.* --resume"):
        run(session, ROWS * 3)


def test_a_row_that_is_out_of_memory_does_not_fail_others(session, monkeypatch):
    original = Session.prefill

    def prefill(self, prepared):
        if prepared.request.question == "When is number 1?":
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(self, prepared)

    monkeypatch.setattr(Session, "prefill", prefill)
    written = run(session, ROWS[:3])
    assert [record.get("error", {}).get("type") for record in written] == [None, "OutOfMemoryError", None]


def test_the_end_does_not_wait_for_rows_that_nobody_wants(session, monkeypatch):
    monkeypatch.setattr(local, "CLOSING", 60.0)

    def write(_record):
        raise BrokenPipeError

    rows = [{**row, "max_new_tokens": 400} for row in ROWS]
    rows[0]["max_new_tokens"] = 1
    with pytest.raises(BrokenPipeError):
        run(session, rows, write)


def test_each_list_of_documents_is_read_once_also_one_that_cannot_be_read():
    read = []

    def reader(names):
        read.append(names)
        if names == ("lost",):
            raise SpecprefillError("lost")
        return COLLECTION

    cached_read = read_once(reader)
    for _ in range(2):
        assert cached_read(("a", "b")) is COLLECTION
        with pytest.raises(SpecprefillError, match="lost"):
            cached_read(("lost",))
    assert read == [("a", "b"), ("lost",)]


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="Unix sockets")
def test_cancelling_ends_a_post_to_a_server():
    with tempfile.TemporaryDirectory(prefix="sp") as folder, socket.socket(socket.AF_UNIX) as listener:
        path = Path(folder) / "http.sock"
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(10)
        outcomes, engine = SimpleQueue(), HttpEngine(path=path)
        request = Request(documents=("/a.txt",), question="Who?", settings=Settings())
        ticket = engine.submit(request, outcomes.put)
        server, _ = listener.accept()
        server.settimeout(10)
        server.recv(1)
        engine.cancel(ticket)
        while server.recv(65536):
            pass
        assert isinstance(outcomes.get(timeout=10).error, Cancelled)

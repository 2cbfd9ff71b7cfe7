"""Rows answered by an engine: records, order, errors, failed devices, cancelling, and the end."""

import json
import socket
import tempfile
from contextlib import closing, suppress
from pathlib import Path
from queue import SimpleQueue
from unittest.mock import Mock

import pytest

from specprefill_cli.answering.session import Session
from specprefill_cli.batching import Batch, BatchEnded
from specprefill_cli.engine import local
from specprefill_cli.engine.http import HttpEngine
from specprefill_cli.engine.local import LocalEngine
from specprefill_cli.engine.request import Cancelled, Request
from specprefill_cli.settings import Settings
from tests.helpers.samples import collection_of

COLLECTION = collection_of("The gate opens at nine. The mill is by the river. " * 20)
SETTINGS = Settings(mode="full", max_new_tokens=6)
ROWS = [{"id": n, "question": f"When is number {n}?", "max_new_tokens": 1 + 5 * (n % 2)} for n in range(9)]


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
        engine.thread.start()
        options |= {"engine": engine, "settings": SETTINGS, "documents": ("a.txt",), "write": write or written.append}
        Batch(**options).run(lines)
    assert not engine.thread.is_alive()
    return written


def test_a_failed_device_ends_the_batch(session, monkeypatch):
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    monkeypatch.setattr(Session, "prefill", Mock(side_effect=error))
    with pytest.raises(BatchEnded, match=r"the device failed \(CUDA error.* --resume"):
        run(session, ROWS)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_that_has_ended_ends_the_batch(session, monkeypatch):
    """Rows in flight get the engine's error. Later rows are left to another run."""
    monkeypatch.setattr(LocalEngine, "admit", lambda _engine: 1 / 0)
    with pytest.raises(BatchEnded, match=r"the engine has ended.* --resume"):
        run(session, ROWS * 3)


def test_the_end_does_not_wait_for_rows_that_nobody_wants(session, monkeypatch):
    monkeypatch.setattr(local, "CLOSING", 60.0)
    rows = [{**row, "max_new_tokens": 400} for row in ROWS]
    rows[0]["max_new_tokens"] = 1
    with pytest.raises(BrokenPipeError):
        run(session, rows, Mock(side_effect=BrokenPipeError))


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="Unix sockets")
def test_cancelling_ends_a_post_to_a_server_at_its_next_event():
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
        piece = b'event: piece\ndata: {"text": "42"}\n\n'
        server.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + piece)
        assert isinstance(outcomes.get(timeout=10).error, Cancelled)
        with suppress(ConnectionError):
            while server.recv(65536):
                pass

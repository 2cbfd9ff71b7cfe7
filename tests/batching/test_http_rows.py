"""Rows answered by a server: what cancelling does to a post."""

import socket
import tempfile
import threading
from pathlib import Path

import pytest

from specprefill_cli.batching.http_rows import HttpRows
from specprefill_cli.batching.rows import parse_line
from specprefill_cli.engine.http import HttpEngine
from specprefill_cli.settings import Settings

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="Unix sockets")


@pytest.fixture(autouse=True)
def no_network():
    """These tests talk to a socket on this machine."""


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_cancelling_ends_a_post_that_waits_and_one_that_has_not_begun(end):
    with tempfile.TemporaryDirectory(prefix="sp") as folder, socket.socket(socket.AF_UNIX) as listener:
        path = Path(folder) / "http.sock"
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(10)
        outcomes = []
        rows = HttpRows(HttpEngine(path=path), Settings(), ("/a.txt",), capacity=1)
        row = parse_line(b'{"question": "Who?"}', 1, True)
        cancels = [rows.ask(row, outcomes.append) for _ in range(2)]
        server, _ = listener.accept()
        server.settimeout(10)
        server.recv(1)
        for cancel in cancels if end == "cancel" else [rows.close]:
            cancel()
        while server.recv(65536):
            pass
        rows.close()
        rows.posting.shutdown(wait=True)
        listener.settimeout(0.1)
        with pytest.raises(TimeoutError):
            listener.accept()
        assert not outcomes
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("post")]

"""Asking a running server how it is, and telling it to stop."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.serving.listening import sole_server
from specprefill_cli.serving.places import HTTP_SOCKET, is_private, runtime_folder

# Seconds to wait for a reply, and for a server to end.
REPLY_SECONDS, STOP_SECONDS = 5.0, 60.0
CHECK_SECONDS = 0.05


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=REPLY_SECONDS)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(os.fspath(self.path))


def server_state() -> dict[str, Any] | None:
    """What `/healthz` of this user's server says; None where none runs. Raises SpecprefillError where it is silent."""
    folder = Path(runtime_folder())
    if not is_private(os.fspath(folder)):
        return None
    lock = sole_server(folder)
    if lock is not None:
        os.close(lock)
        return None
    connection = UnixConnection(folder / HTTP_SOCKET)
    try:
        connection.request("GET", "/healthz")
        return json.loads(connection.getresponse().read())
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise SpecprefillError("the server does not answer; it may still be loading its models") from error
    finally:
        connection.close()


def stop_server(process: int) -> None:
    """Let the server finish what it is answering, and wait for its end. Raises SpecprefillError where it goes on."""
    folder = Path(runtime_folder())
    try:
        os.kill(process, signal.SIGTERM)
    except ProcessLookupError:
        return
    deadline = time.monotonic() + STOP_SECONDS
    while time.monotonic() < deadline:
        lock = sole_server(folder)
        if lock is not None:
            os.close(lock)
            return
        time.sleep(CHECK_SECONDS)
    raise SpecprefillError(f"the server still runs after {STOP_SECONDS:g} s; end process {process} yourself")

"""Finding this user's running server, asking how it is, and telling it to stop."""

from __future__ import annotations

import http.client
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specprefill_cli.engine.http import HttpEngine, UnixConnection
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.serving.identity import identity_of
from specprefill_cli.serving.places import HAS_UNIX_SOCKETS, HTTP_SOCKET, SWITCH, is_private, runtime_folder
from specprefill_cli.settings import Settings

# Seconds to wait for a reply, and for a server to end.
REPLY_SECONDS, STOP_SECONDS = 5.0, 60.0
CHECK_SECONDS = 0.05


def server_state() -> dict[str, Any] | None:
    """What `/healthz` of this user's server says; None where none runs. Raises SpecprefillError where it is silent."""
    if not HAS_UNIX_SOCKETS or not is_private(runtime_folder()):
        return None
    connection = UnixConnection(socket_path(), REPLY_SECONDS)
    try:
        connection.connect()
    except OSError:
        return None
    try:
        connection.request("GET", "/healthz")
        return json.loads(connection.getresponse().read())
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise SpecprefillError("the server does not answer; end its process") from error
    finally:
        connection.close()


def socket_path() -> Path:
    """The socket of this user's server."""
    return Path(runtime_folder()) / HTTP_SOCKET


def server_for(
    settings: Settings, startup_seconds: Callable[[], float], tell: Callable[[str], None]
) -> HttpEngine | None:
    """The running server, where it answers as this process would; otherwise the user is told why not.

    startup_seconds: of this process
    """
    if os.environ.get(SWITCH, "").lower() == "off" or "RANK" in os.environ:
        return None
    try:
        state = server_state()
    except SpecprefillError:
        tell("the server does not answer; running without it")
        return None
    if state is None:
        return None
    reason = identity_of(settings).difference(state.get("identity") or {})
    if reason is None and state["status"] != "ok":
        reason = "the server is still loading its models" if state["status"] == "loading" else "the server is stuck"
    if reason is not None:
        tell(f"{reason}; running without it")
        return None
    return HttpEngine(path=socket_path(), startup_seconds=startup_seconds())


def stop_server(process: int) -> None:
    """Let the server finish what it is answering, and wait for its end. Raises SpecprefillError where it goes on."""
    from specprefill_cli.serving.listening import sole_server

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

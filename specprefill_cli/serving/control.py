"""This user's running server: its identity, its state, and its end."""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specprefill_cli import __version__
from specprefill_cli.engine.http import HttpEngine, UnixConnection
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.sources.pairs import chosen_pair
from specprefill_cli.serving.listening import HAS_UNIX_SOCKETS, HTTP_SOCKET, is_private, lock_server, runtime_folder
from specprefill_cli.settings import SETTINGS, Settings

VERSION = "version"
# Environment variables that decide which models are loaded.
VARIABLES = ("SPECPREFILL_CALIBRATION", "HF_HOME", "HF_HUB_CACHE", "CUDA_VISIBLE_DEVICES")
# Settings that name models (compared by path), or that change no answer.
NOT_COMPARED = ("pair", "draft", "target", "adapter", "offline", "memory_cache", "confirm")
# Seconds to wait for a reply, and for the end of a server.
REPLY_SECONDS, STOP_SECONDS = 5.0, 60.0
CHECK_SECONDS = 0.05

# Everything that must be equal, by name, for a server to give the answers of a process without it.
Identity = dict[str, Any]


def server_identity(settings: Settings) -> Identity:
    """The identity of a server with these settings. Raises UsageError for a pair that does not exist."""
    pair = chosen_pair(settings)
    names = filter(None, (pair.draft, pair.target, pair.adapter))
    # Hub ids, or absolute paths: a relative path depends on the working folder.
    models = [os.path.realpath(name) if os.path.exists(name) else name for name in names]
    names_compared = [
        name for name, setting in SETTINGS.items() if not setting.per_question and name not in NOT_COMPARED
    ]
    # The time of a folder does not change when a file in it is rewritten.
    package = Path(__file__).absolute().parents[1]
    latest_change = max(path.stat().st_mtime_ns for path in package.rglob("*.py"))
    return {
        VERSION: f"{__version__} {package} {sys.prefix} {latest_change}",
        "the pair": " -> ".join(models),
        **{SETTINGS[name].flag: getattr(settings, name) for name in names_compared},
        **{f"the variable {name}": os.environ.get(name) for name in VARIABLES},
    }


def difference(identity: Identity, running: Identity) -> str | None:
    """Describe the first difference of the running server's identity from this identity; None where they are equal."""
    if running.get(VERSION) != identity[VERSION]:
        return "a server of another version or installation is running"
    differing = (name for name, value in identity.items() if running.get(name) != value)
    return next((f"the running server has {name} {running.get(name)}" for name in differing), None)


def server_state() -> dict[str, Any] | None:
    """The reply of `/healthz`; None where no server runs. Raises SpecprefillError where the server does not reply."""
    if not HAS_UNIX_SOCKETS or not is_private(runtime_folder()):
        return None
    connection = UnixConnection(Path(runtime_folder(), HTTP_SOCKET), REPLY_SECONDS)
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


def server_for(
    settings: Settings, startup_seconds: Callable[[], float], tell: Callable[[str], None]
) -> HttpEngine | None:
    """The running server, where it answers as this process would; otherwise None, and `tell` gets the reason.

    startup_seconds: returns the seconds that this process has taken to start
    """
    if os.environ.get("SPECPREFILL_SERVER", "").lower() == "off" or "RANK" in os.environ:
        return None
    try:
        state = server_state()
    except SpecprefillError:
        tell("the server does not answer; running without it")
        return None
    if state is None:
        return None
    reason = difference(server_identity(settings), state.get("identity") or {})
    if reason is None and state["status"] != "ok":
        reason = "the server is still loading its models" if state["status"] == "loading" else "the server is stuck"
    if reason is not None:
        tell(f"{reason}; running without it")
        return None
    return HttpEngine(path=Path(runtime_folder(), HTTP_SOCKET), startup_seconds=startup_seconds())


def stop_server(process: int) -> None:
    """Let the server finish its answers, and wait for its end. Raises SpecprefillError where it keeps running."""
    folder = Path(runtime_folder())
    try:
        os.kill(process, signal.SIGTERM)
    except ProcessLookupError:
        return
    deadline = time.monotonic() + STOP_SECONDS
    while time.monotonic() < deadline:
        lock = lock_server(folder)
        if lock is not None:
            os.close(lock)
            return
        time.sleep(CHECK_SECONDS)
    raise SpecprefillError(f"the server still runs after {STOP_SECONDS:g} s; end process {process} yourself")

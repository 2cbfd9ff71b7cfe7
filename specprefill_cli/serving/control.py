"""This user's server: its private folder, lock, sockets and token; its identity, its state, and its end."""

import http.client
import ipaddress
import json
import os
import secrets
import signal
import socket
import stat
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specprefill_cli import __version__
from specprefill_cli.engine.http import HttpEngine, UnixConnection
from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.models.sources.pairs import chosen_pair
from specprefill_cli.models.sources.refs import is_endpoint
from specprefill_cli.settings import SETTINGS, Settings

if TYPE_CHECKING:
    from filelock import FileLock

HAS_UNIX_SOCKETS = os.name == "posix"
HTTP_SOCKET, LOCK, TOKEN = "http.sock", "lock", "token"
VERSION = "version"
# Environment variables that decide which models are loaded.
VARIABLES = ("SPECPREFILL_CALIBRATION", "HF_HOME", "HF_HUB_CACHE", "CUDA_VISIBLE_DEVICES")
# Settings that are compared by path, or that change no answer.
NOT_COMPARED = ("pair", "draft", "target", "adapter", "offline", "memory_cache", "confirm", "prompt")
# Seconds to wait for the end of a server.
STOP_SECONDS = 60.0
# Everything that must be equal, by name, for a server to give the answers of a process without it.
Identity = dict[str, Any]
# A listening socket, its address as text, and its token: None on the Unix socket, because only this user opens it.
Listener = tuple[socket.socket, str, str | None]


def runtime_folder() -> Path:
    """The folder of this user's server: in $XDG_RUNTIME_DIR, or in the folder for temporary files."""
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime, "specprefill")
    return Path(tempfile.gettempdir(), f"specprefill-{os.getuid()}" if HAS_UNIX_SOCKETS else "specprefill")


def is_private(folder: Path) -> bool:
    """Whether a folder exists, is no link, belongs to this user, and is closed to everybody else."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def private_folder() -> Path:
    """Create the runtime folder where it is missing. Raises SpecprefillError where others may enter it."""
    folder = runtime_folder()
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if HAS_UNIX_SOCKETS and not is_private(folder):
        cause = "must be a folder of your own that nobody else may enter"
        raise SpecprefillError(f"{folder}: {cause}; remove it, or set XDG_RUNTIME_DIR")
    return folder


def server_lock(timeout: float = 0) -> "FileLock":
    """The lock that this user's only server holds. timeout: seconds to wait for it."""
    from filelock import FileLock

    return FileLock(runtime_folder() / LOCK, timeout)


def unix_listener(path: Path) -> socket.socket:
    """Listen on a Unix socket, and replace one that a dead server left. Raises SpecprefillError where that fails."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        listener.bind(os.fspath(path))
    except OSError as error:
        remedy = "set XDG_RUNTIME_DIR to another, shorter folder"
        raise SpecprefillError(f"{path}: cannot listen there ({error}); {remedy}") from error
    listener.listen()
    return listener


def http_listener(text: str) -> socket.socket:
    """Listen on host and port of `--http`. Raises UsageError for a wrong address, SpecprefillError for one in use."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--http {text}: give an address and a port, such as 127.0.0.1:8777")
    host = host.removeprefix("[").removesuffix("]")
    try:
        return socket.create_server((host, int(port)), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        # The socket module appends the address.
        reason = (error.strerror or str(error)).partition(" (while attempting")[0]
        cause = f"cannot listen there ({reason})"
        raise SpecprefillError(f"--http {text}: {cause}; give another address or port") from error


def token_of(folder: Path, tell: Callable[[str], None]) -> str:
    """The token in a file of the folder, created where it is missing and told once. Raises UsageError."""
    path = folder / TOKEN
    if not path.exists():
        with open(path, "x", opener=partial(os.open, mode=0o600)) as stream:
            stream.write(secrets.token_urlsafe())
        tell(f"token: {path.read_text()} (stored in {path}; it is not shown again)")
    # Clients send any bytes; the guard compares them as Latin-1.
    token = path.read_text(encoding="latin-1").strip()
    if not token:
        raise UsageError(f"{path}: is empty; write a token into it, or remove it")
    return token


def listen(
    folder: Path, http_address: str | None, on_socket: bool, stack: ExitStack, tell: Callable[[str], None]
) -> list[Listener]:
    """Open all sockets; the stack closes and removes them. on_socket: also a Unix socket, for commands."""
    listeners: list[Listener] = []
    if http_address is not None:
        listener = stack.enter_context(http_listener(http_address))
        token = token_of(folder, tell)
        host, port = listener.getsockname()[:2]
        if not ipaddress.ip_address(host).is_loopback:
            tell(f"{host}: anyone with the token can ask questions; answers travel unencrypted")
        listeners.append((listener, f"http://{f'[{host}]' if ':' in host else host}:{port}", token))
    if on_socket and HAS_UNIX_SOCKETS:
        path = folder / HTTP_SOCKET
        listeners.append((stack.enter_context(unix_listener(path)), str(path), None))
        stack.callback(path.unlink, missing_ok=True)
    return listeners


def server_identity(settings: Settings) -> Identity:
    """The identity of a server with these settings. Raises UsageError for a pair that does not exist."""
    pair = chosen_pair(settings)
    prompt = settings.prompt or pair.prompt
    names = filter(None, (pair.draft, pair.target, pair.adapter))
    # Hub ids, or absolute paths: a relative path depends on the working folder.
    models = [os.path.realpath(name) if os.path.exists(name) else name for name in names]
    compared = [setting for name, setting in SETTINGS.items() if not setting.per_question and name not in NOT_COMPARED]
    return {
        VERSION: f"{__version__} {Path(__file__).absolute().parents[1]} {sys.prefix}",
        "the pair": " -> ".join(models),
        "the prompt": os.path.realpath(prompt) if prompt.endswith(".toml") else prompt,
        **{setting.flag: getattr(settings, setting.name) for setting in compared},
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
    try:
        connection = UnixConnection(runtime_folder() / HTTP_SOCKET)
    except OSError:
        return None
    try:
        with closing(connection):
            connection.request("GET", "/healthz")
            return json.loads(connection.getresponse().read())
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise SpecprefillError("the server does not answer; end its process") from error


def server_for(settings: Settings, tell: Callable[[str], None]) -> HttpEngine | None:
    """The running server, where it answers as this process would; otherwise None, and `tell` gets the reason."""
    is_off = os.environ.get("SPECPREFILL_SERVER", "").lower() == "off"
    if is_off or "RANK" in os.environ or is_endpoint(settings.target):
        return None
    try:
        state = server_state()
    except SpecprefillError:
        state = {"status": "silent"}
    if state is None:
        return None
    reason = None if state["status"] == "silent" else difference(server_identity(settings), state.get("identity") or {})
    if reason is None and state["status"] != "ok":
        reason = f"the server is {state['status']}"
    if reason is None:
        return HttpEngine(path=runtime_folder() / HTTP_SOCKET)
    tell(f"specprefill: {reason}; running without it")
    return None


def stop_server(process: int) -> None:
    """Let the server finish its answers, and wait for its end. Raises SpecprefillError where it keeps running."""
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGTERM)
    try:
        with server_lock(STOP_SECONDS):
            return
    except TimeoutError as error:
        message = f"the server still runs after {STOP_SECONDS:g} s; end process {process} yourself"
        raise SpecprefillError(message) from error

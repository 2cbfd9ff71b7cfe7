"""The server's sockets in a folder that nobody else can enter, and the lock that lets one server run at a time."""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
import stat
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from specprefill_cli.errors import SpecprefillError, UsageError

HAS_UNIX_SOCKETS = os.name == "posix"
HTTP_SOCKET, LOCK, TOKEN = "http.sock", "lock", "token"
# The longest path of a Unix socket: the system's address structure bounds it.
MAX_PATH_BYTES = 103
TOKEN_BYTES = 32


class Listener(NamedTuple):
    """A bound socket. It refuses connections until a server listens on it.

    token: that requests must bring; None on the Unix socket; address: in words
    """

    socket: socket.socket
    token: str | None
    address: str


def runtime_folder() -> str:
    """The folder of this user's server: in $XDG_RUNTIME_DIR, else in the folder for temporary files, named by uid."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return os.path.join(runtime, "specprefill")
    return os.path.join(os.environ.get("TMPDIR") or "/tmp", f"specprefill-{os.getuid()}")


def is_private(folder: str) -> bool:
    """Whether a folder is there, no link, this user's own, and closed to everybody else."""
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def private_folder() -> Path:
    """The runtime folder, made where it is missing. Raises SpecprefillError where others may enter it.

    On a system without Unix sockets it is the folder for the state of the user's programs.
    """
    if not HAS_UNIX_SOCKETS:
        import platformdirs

        return platformdirs.user_state_path("specprefill", ensure_exists=True)
    folder = runtime_folder()
    with suppress(OSError):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    if not is_private(folder):
        raise SpecprefillError(
            f"{folder}: must be a folder of your own that nobody else may enter; remove it, or set XDG_RUNTIME_DIR"
        )
    return Path(folder)


def sole_server(folder: Path) -> int | None:
    """The descriptor of the lock of this user's one server; None while another has it.

    The lock ends when the descriptor is closed in every process that has it, however they end.
    """
    from filelock import lock_descriptor

    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    if lock_descriptor(descriptor, blocking=False):
        return descriptor
    os.close(descriptor)
    return None


def unix_listener(path: Path) -> socket.socket:
    """A Unix socket that only this user may open; one that a dead server left is replaced.

    Raises SpecprefillError where that is impossible.
    """
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise SpecprefillError(f"{path}: too long for a socket; set XDG_RUNTIME_DIR to a shorter folder")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        path.unlink(missing_ok=True)
        listener.bind(os.fspath(path))
    except OSError as error:
        raise SpecprefillError(f"{path}: cannot listen there ({error.strerror}); check the folder") from error
    finally:
        os.umask(mask)
    return listener


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `--http`. Raises UsageError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--http {text}: give an address and a port, such as 127.0.0.1:8777")
    return host.removeprefix("[").removesuffix("]"), int(port)


def http_listener(host: str, port: int) -> socket.socket:
    """A socket bound to an address. Raises SpecprefillError where that is impossible."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise SpecprefillError(
            f"--http {host}:{port}: cannot listen there ({error.strerror or error}); give another address or port"
        ) from error
    return listener


def read_token(path: Path) -> str:
    """The token in a file. Raises OSError, or UsageError for a file that others may read or that holds none."""
    if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise UsageError(f"{path}: others may read this token; run `chmod 600 {path}`")
    token = path.read_text(encoding="ascii", errors="replace").strip()
    if len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(f"{path}: no token; write 16 or more letters and digits into it")
    return token


def stored_token(path: Path, tell: Callable[[str], None]) -> str:
    """The token of this user's servers in its file; a new one, where there is none, is shown once."""
    with suppress(OSError):
        token = read_token(path)
        tell(f"token: in {path}")
        return token
    token = secrets.token_urlsafe(TOKEN_BYTES)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as stream:
            stream.write(token + "\n")
    except OSError as error:
        raise SpecprefillError(f"{path}: cannot be written ({error.strerror}); give --token-file") from error
    tell(f"token: {token} (kept in {path}, and not shown again)")
    return token


def choose_token(folder: Path, host: str, token_file: Path | None, tell: Callable[[str], None]) -> str:
    """The token of an address. Raises UsageError for one that other machines reach without a token file."""
    try:
        is_local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = False
    if token_file is None:
        if is_local:
            return stored_token(folder / TOKEN, tell)
        raise UsageError(
            f"--http {host}: other machines reach this address; give --token-file, and put a proxy with TLS before it"
        )
    if not is_local:
        tell(f"{host}: anyone with the token can ask questions; answers travel unencrypted")
    try:
        return read_token(token_file)
    except OSError as error:
        raise UsageError(f"--token-file {token_file}: cannot be read ({error.strerror})") from error


def listen(
    folder: Path,
    http_address: str | None,
    token_file: Path | None,
    stack: ExitStack,
    tell: Callable[[str], None],
    on_socket: bool,
) -> list[Listener]:
    """Bind all sockets; they are closed, and the one in the folder is removed, when the stack is left.

    http_address, token_file: the options `--http` and `--token-file`; on_socket: whether commands find the server
    """
    listeners: list[Listener] = []
    if http_address is not None:
        host, port = parse_address(http_address)
        token = choose_token(folder, host, token_file, tell)
        bound = stack.enter_context(http_listener(host, port))
        address = f"http://{f'[{host}]' if ':' in host else host}:{bound.getsockname()[1]}"
        listeners.append(Listener(bound, token, address))
    if on_socket:
        path = folder / HTTP_SOCKET
        listeners.append(Listener(stack.enter_context(unix_listener(path)), None, str(path)))
        stack.callback(path.unlink, missing_ok=True)
    return listeners

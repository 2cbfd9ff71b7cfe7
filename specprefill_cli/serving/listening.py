"""Listening sockets in a private folder, and the lock that admits a single server at a time."""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
import stat
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from specprefill_cli.errors import SpecprefillError, UsageError

HAS_UNIX_SOCKETS = os.name == "posix"
HTTP_SOCKET, LOCK, TOKEN = "http.sock", "lock", "token"
TOKEN_BYTES = 32


def runtime_folder() -> str:
    """The folder of this user's server: in $XDG_RUNTIME_DIR, or named by uid in the folder for temporary files."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return os.path.join(runtime, "specprefill")
    return os.path.join(os.environ.get("TMPDIR") or "/tmp", f"specprefill-{os.getuid()}")


def is_private(folder: str) -> bool:
    """Whether a folder exists, is no link, belongs to this user, and is closed to everybody else."""
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def private_folder() -> Path:
    """Create the runtime folder where it is missing. Raises SpecprefillError where others may enter it.

    Systems without Unix sockets use the folder for the state of the user's programs instead.
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


def lock_server(folder: Path) -> int | None:
    """Take the lock of this user's only server. Returns its descriptor; None while another process has it.

    The lock ends when every process that has the descriptor has closed it or ended.
    """
    from filelock import lock_descriptor

    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    if lock_descriptor(descriptor, blocking=False):
        return descriptor
    os.close(descriptor)
    return None


def unix_listener(path: Path) -> socket.socket:
    """Listen on a Unix socket, which its private folder protects, and replace a socket that a dead server left.

    Raises SpecprefillError where that is impossible.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        listener.bind(os.fspath(path))
    except OSError as error:
        raise SpecprefillError(
            f"{path}: cannot listen there ({error}); set XDG_RUNTIME_DIR to another, shorter folder"
        ) from error
    listener.listen()
    return listener


def parse_address(text: str) -> tuple[str, int]:
    """Parse host and port of `--http`. Raises UsageError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--http {text}: give an address and a port, such as 127.0.0.1:8777")
    return host.removeprefix("[").removesuffix("]"), int(port)


def http_listener(host: str, port: int) -> socket.socket:
    """Listen on an address. Raises SpecprefillError where that is impossible."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        # The socket module appends the address.
        reason = (error.strerror or str(error)).partition(" (while attempting")[0]
        raise SpecprefillError(
            f"--http {host}:{port}: cannot listen there ({reason}); give another address or port"
        ) from error


def token_of(token_file: Path | None, folder: Path, tell: Callable[[str], None]) -> str:
    """The token in `--token-file`, else in a file of the folder, which is created where it is missing and told once.

    Raises UsageError for a file that cannot be read, or that is empty.
    """
    path = token_file or folder / TOKEN
    try:
        if token_file is None and not path.exists():
            with open(path, "x", opener=partial(os.open, mode=0o600)) as stream:
                stream.write(secrets.token_urlsafe(TOKEN_BYTES))
            tell(f"token: {path.read_text()} (stored in {path}; it is not shown again)")
        # Clients send any bytes; the guard compares them as Latin-1.
        token = path.read_text(encoding="latin-1").strip()
    except OSError as error:
        raise UsageError(f"{path}: no token ({error.strerror}); give another --token-file") from error
    if not token:
        raise UsageError(f"{path}: is empty; write a token into it")
    return token


def listen(
    folder: Path,
    http_address: str | None,
    token_file: Path | None,
    stack: ExitStack,
    tell: Callable[[str], None],
    on_socket: bool,
) -> list[tuple[socket.socket, str, str | None]]:
    """Open all sockets. The stack closes them, and removes those in the folder.

    http_address, token_file: the options `--http` and `--token-file`
    on_socket: whether to open the Unix socket, through which commands find the server

    Returns sockets, their addresses as text, and their tokens: None on the Unix socket, because only this user opens it.
    """
    listeners: list[tuple[socket.socket, str, str | None]] = []
    if http_address is not None:
        host, port = parse_address(http_address)
        token = token_of(token_file, folder, tell)
        listener = stack.enter_context(http_listener(host, port))
        if not ipaddress.ip_address(listener.getsockname()[0]).is_loopback:
            tell(f"{host}: anyone with the token can ask questions; answers travel unencrypted")
        address = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
        listeners.append((listener, address, token))
    if on_socket:
        path = folder / HTTP_SOCKET
        listeners.append((stack.enter_context(unix_listener(path)), str(path), None))
        stack.callback(path.unlink, missing_ok=True)
    return listeners

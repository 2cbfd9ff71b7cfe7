"""Hands a command to this user's running server, where there is one. Standard library only: it runs before any command.

The server's process for the command gets this one's streams, folder and environment, so that it writes what this one
would have written; this one waits, and passes signals on.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time

from specprefill_cli import __version__
from specprefill_cli.serving.frames import frame, receive_frame, wait_for_message
from specprefill_cli.serving.places import (
    COMMAND_SOCKET,
    SWITCH,
    TAKES_COMMANDS,
    installation,
    is_private,
    runtime_folder,
)

SERVED = ("ask", "batch", "passages", "plan")
NO_SERVER = "--no-server"
# Seconds that a server may take to answer; one that was stopped by Ctrl-Z never does.
PATIENCE = 5.0
OLD = "a server of another version or installation is running"
SILENT = "the server does not answer"


def forwarded(arguments: list[str]) -> int | None:
    """Let the server run a command; its exit code, or None where the command is to run here."""
    if not TAKES_COMMANDS or not wants_server(arguments):
        return None
    connection = connected()
    if connection is None:
        return None
    with connection:
        try:
            hand_over(connection, arguments)
            first = json.loads(receive_frame(connection))
        except (OSError, EOFError, ValueError):
            say_alone(SILENT, arguments)
            return None
        if "alone" in first:
            say_alone(first["alone"], arguments)
            return None
        connection.settimeout(None)
        return follow(connection, first["process"], arguments)


def wants_server(arguments: list[str]) -> bool:
    """Whether a command line may go to a server: one of the served commands, with open streams, and not refused."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    command = next((argument for argument in arguments if not argument.startswith("-")), None)
    streams = sys.stdin is not None and sys.stdout is not None and sys.stderr is not None
    refused = NO_SERVER in options or os.environ.get(SWITCH, "").lower() == "off" or "RANK" in os.environ
    return command in SERVED and streams and not refused


def connected() -> socket.socket | None:
    """A connection to the server; None where there is none, or its folder is not this user's alone."""
    folder = runtime_folder()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(PATIENCE)
    try:
        connection.connect(os.path.join(folder, COMMAND_SOCKET))
    except OSError:
        connection.close()
        return None
    if not is_private(folder):
        connection.close()
        return None
    return connection


def hand_over(connection: socket.socket, arguments: list[str]) -> None:
    """Send the command line with everything that its output depends on."""
    module = sys.modules["__main__"]
    mask = os.umask(0o077)
    os.umask(mask)
    root = os.stat("/")
    call = {
        "version": __version__,
        "installation": installation(),
        "arguments": [sys.argv[0], *arguments],
        "package": getattr(module, "__package__", None),
        "environment": dict(os.environ),
        "umask": mask,
        "root": [root.st_dev, root.st_ino],
        "encodings": [[stream.encoding, stream.errors] for stream in (sys.stdin, sys.stdout, sys.stderr)],
        # The clock is that of the whole machine.
        "started": time.perf_counter(),
    }
    folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        socket.send_fds(connection, [b"c"], [0, 1, 2, folder])
    finally:
        os.close(folder)
    connection.sendall(frame(json.dumps(call).encode("ascii")))


def follow(connection: socket.socket, process: int, arguments: list[str]) -> int | None:
    """Wait for the command's end, and pass on the signals that would have ended it; its exit code."""

    def pass_on(number: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pass_on)
    signal.signal(signal.SIGTSTP, lambda *_: pause(process))
    try:
        wait_for_message(connection)
        last = json.loads(receive_frame(connection))
    except (OSError, EOFError):
        print(
            "specprefill: the server's process for this command ended; run it again with --no-server", file=sys.stderr
        )
        return 1
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTSTP):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    if "alone" in last:
        say_alone(last["alone"], arguments, last["quiet"])
        return None
    return int(last["code"])


def pause(process: int) -> None:
    """Ctrl-Z stops the server's process as well, and `fg` continues both."""
    os.kill(process, signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGSTOP)
    os.kill(process, signal.SIGCONT)


def say_alone(reason: str, arguments: list[str], quiet: bool | None = None) -> None:
    """Say why the command runs here.

    quiet: whether the command was asked to write no notes; None: not known yet
    """
    if quiet is None:
        quiet = bool({"-q", "--quiet"} & set(arguments))
    if not quiet:
        print(f"specprefill: {reason}; running without it", file=sys.stderr)

"""A forked process that runs a caller's command: it takes over streams, folder and environment, and reports the end."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import sys
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from specprefill_cli import __version__
from specprefill_cli.serving.client import OLD
from specprefill_cli.serving.frames import frame, receive_frame
from specprefill_cli.serving.places import installation

# Runs the command line in `sys.argv`: when the caller started, and the socket to the engine. It ends with SystemExit.
CommandLine = Callable[[float, socket.socket], None]


class RunAlone(BaseException):
    """The command cannot use this server; nothing of it has been done yet.

    Not an Exception, so that no error handling of the command line takes it for a failure.
    """

    def __init__(self, reason: str, quiet: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.quiet = quiet


@dataclass(frozen=True)
class Runner:
    """Runs commands in forked processes."""

    command_line: CommandLine

    def __call__(self, connection: socket.socket, engine: socket.socket) -> None:
        """Run the command that the caller hands over."""
        call, files = receive_call(connection)
        refusal = refuse(call)
        if refusal is not None:
            send(connection, {"alone": refusal})
            return
        adopt(call, files)
        if not send(connection, {"process": os.getpid()}):
            # The caller has not waited, and runs the command itself.
            return
        threading.Thread(target=end_with_caller, args=(connection,), daemon=True).start()
        code: Any = 0
        try:
            self.command_line(call["started"], engine)
        except RunAlone as error:
            send(connection, {"alone": error.reason, "quiet": error.quiet})
            return
        except SystemExit as ended:
            code = ended.code
        flush()
        send(connection, {"code": code if isinstance(code, int) else int(bool(code))})


def receive_call(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The call and the descriptors of standard input, output and error, and of the folder."""
    _, files, _, _ = socket.recv_fds(connection, 1, 4)
    return json.loads(receive_frame(connection)), files


def refuse(call: dict[str, Any]) -> str | None:
    """Why the caller must run the command itself, or None."""
    root = os.stat("/")
    if (call["version"], call["installation"]) != (__version__, installation()):
        return OLD
    if call["root"] != [root.st_dev, root.st_ino]:
        return "the server sees other files"
    return None


def adopt(call: dict[str, Any], files: list[int]) -> None:
    """Take over the caller's streams, folder, environment and command line."""
    *streams, folder = files
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.fchdir(folder)
    os.close(folder)
    os.umask(call["umask"])
    os.environ.clear()
    os.environ.update(call["environment"])
    sys.argv = call["arguments"]
    # Usage messages name the program as it was called.
    main = types.ModuleType("__main__")
    main.__package__ = call["package"]
    sys.modules["__main__"] = main
    (sys.stdin, sys.stdout, sys.stderr) = map(open_stream, range(3), call["encodings"])


def open_stream(number: int, encoding: list[str]) -> io.TextIOWrapper:
    """A standard stream as Python opens it."""
    writes = number > 0
    raw = open(number, "wb" if writes else "rb", closefd=False)  # noqa: SIM115
    unbuffered = writes and bool(os.environ.get("PYTHONUNBUFFERED"))
    return io.TextIOWrapper(
        raw,
        encoding=encoding[0],
        errors=encoding[1],
        line_buffering=number == 2 or (writes and raw.isatty()),
        write_through=unbuffered,
    )


def end_with_caller(connection: socket.socket) -> None:
    """End the command when its caller has gone: nobody takes its output or its exit code."""
    with contextlib.suppress(OSError):
        connection.recv(1)
    os.kill(os.getpid(), signal.SIGTERM)


def flush() -> None:
    """Write what is still buffered; a reader that has gone is no error at this point."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def send(connection: socket.socket, message: dict[str, Any]) -> bool:
    """Tell the caller something; whether it was still there."""
    try:
        connection.sendall(frame(json.dumps(message).encode("ascii")))
    except OSError:
        return False
    return True

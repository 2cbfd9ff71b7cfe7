"""Messages of known length on a stream socket. Imports little: it runs before any command."""

from __future__ import annotations

import select
import socket
import struct

from specprefill_cli.signals import SLICE_SECONDS

_LENGTH = struct.Struct(">Q")
HEADER = _LENGTH.size


def frame(content: bytes) -> bytes:
    """The content behind its length."""
    return _LENGTH.pack(len(content)) + content


def length_of(header: bytes) -> int:
    """The length that the first `HEADER` bytes of a frame state."""
    return int(_LENGTH.unpack(header)[0])


def wait_for_message(connection: socket.socket) -> None:
    """Wait for a message or the end, and for Ctrl-C, which a single wait would miss if it came just before."""
    while not select.select([connection], [], [], SLICE_SECONDS)[0]:
        pass


def receive_frame(connection: socket.socket) -> bytes:
    """The next message. Raises EOFError where the other side has closed the connection."""
    return receive_exactly(connection, length_of(receive_exactly(connection, HEADER)))


def receive_exactly(connection: socket.socket, size: int) -> bytes:
    """Raises EOFError where the connection ends before that many bytes."""
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 2**20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)

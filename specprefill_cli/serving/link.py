"""A command's end of its socket to the engine."""

from __future__ import annotations

import pickle
import socket
from dataclasses import dataclass
from typing import Any

from specprefill_cli.serving.frames import frame, receive_frame, wait_for_message
from specprefill_cli.serving.messages import Failed
from specprefill_cli.signals import deferred_signals


class EngineGone(Exception):
    """The engine has closed its end."""


@dataclass
class EngineLink:
    """The socket to the engine. Each message that asks for something has one last reply, after which comes the next."""

    connection: socket.socket
    unread: bytes | None = None

    def send(self, message: object) -> None:
        try:
            self.connection.sendall(frame(pickle.dumps(message)))
        except OSError as error:
            raise EngineGone from error

    def receive(self) -> Any:
        """The next reply. Raises EngineGone, or what the engine's job raised."""
        try:
            if self.unread is None:
                wait_for_message(self.connection)
                # A signal may come while it waits, but not in the middle of a message, which the next call then returns.
                with deferred_signals():
                    self.unread = receive_frame(self.connection)
        except (OSError, EOFError) as error:
            raise EngineGone from error
        # The other end is our own server, on a socket pair that nobody else holds.
        message, self.unread = pickle.loads(self.unread), None
        if isinstance(message, Failed):
            raise message.error
        return message

    def request(self, message: object) -> Any:
        """Send, and wait for the reply; an interrupt leaves the link without use."""
        self.send(message)
        try:
            return self.receive()
        except KeyboardInterrupt:
            self.connection.close()
            raise

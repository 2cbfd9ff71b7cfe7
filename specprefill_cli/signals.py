"""SIGINT (Ctrl-C) and SIGTERM end the work in progress, but never in the middle of an atomic step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Longest wait of the main thread before it checks for signals: a signal that arrives just before a wait does not end it.
SLICE_SECONDS = 0.2


class Termination:
    """Turns SIGTERM into KeyboardInterrupt, so that it ends a command like Ctrl-C, and records that it arrived."""

    def __init__(self) -> None:
        self.requested = False

    def __call__(self, *_: object) -> None:
        self.requested = True
        raise KeyboardInterrupt

    @contextmanager
    def handle_signal(self) -> Iterator[None]:
        """Handle SIGTERM during the block."""
        before = signal.signal(signal.SIGTERM, self)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def deferred_signals(insistent: bool = False) -> Iterator[None]:
    """Hold back SIGINT and SIGTERM until the block ends.

    insistent: whether a second signal interrupts the block
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []

    def hold(number: int, _frame: object) -> None:
        pending.append(number)
        if insistent and len(pending) > 1:
            raise KeyboardInterrupt

    handlers = {number: signal.signal(number, hold) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signal_number, handler in handlers.items():
            signal.signal(signal_number, handler)
        for number in pending[:1]:
            signal.raise_signal(number)

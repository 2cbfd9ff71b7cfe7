"""SIGINT (Ctrl-C) and SIGTERM end the work in progress, but never in the middle of an atomic step."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Longest wait of the main thread before it checks for signals: a signal that arrives just before a wait does not end it.
SLICE_SECONDS = 0.2


def terminate_like_interrupt() -> threading.Event:
    """From now on, SIGTERM ends the command like Ctrl-C; the event tells whether it arrived."""
    terminated = threading.Event()

    def terminate(*_: object) -> None:
        terminated.set()
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, terminate)
    return terminated


@contextmanager
def deferred_signals(insistent: bool = False) -> Iterator[None]:
    """Hold back SIGINT and SIGTERM until the block ends; insistent: whether a second signal interrupts it."""
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

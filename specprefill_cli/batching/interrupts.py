"""SIGINT and SIGTERM end a batch between two rows of output, never inside one."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Interrupts:
    """Turns both signals into KeyboardInterrupt, which is put off while signals are `held`, except for a second one."""

    def __init__(self) -> None:
        self.holding = False
        self.pending = False

    def __call__(self, _signal: int, _frame: object) -> None:
        if self.holding and not self.pending:
            self.pending = True
        else:
            raise KeyboardInterrupt

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Handle both signals while the block runs."""
        before = {number: signal.signal(number, self) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Put a signal off until the block is done."""
        self.holding = True
        try:
            yield
        finally:
            self.holding = False
        if self.pending:
            raise KeyboardInterrupt

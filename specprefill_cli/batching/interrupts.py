"""SIGINT and SIGTERM end a batch between two rows of output, never inside one."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Interrupts:
    """Turns both signals into KeyboardInterrupt, which waits while something is `held`; a second signal does not."""

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
        """Take both signals for as long as the block runs."""
        before = {number: signal.signal(number, self) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Finish the block before a signal counts."""
        self.holding = True
        try:
            yield
        finally:
            self.holding = False
        if self.pending:
            raise KeyboardInterrupt

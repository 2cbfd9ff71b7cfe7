"""Standard error for people: progress, notes, tables. Standard output belongs to the answer."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


class Notes:
    """Writes to standard error; silent when quiet. Progress is shown on a terminal only."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet

    @property
    def console(self) -> Console:
        from rich.console import Console

        # A pipe has no width; wide enough that a row of the table is not broken into many.
        return Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else 120)

    def show(self, renderable: RenderableType) -> None:
        if not self.quiet:
            self.console.print(renderable)

    @contextmanager
    def progress(self, text: str) -> Iterator[None]:
        """Show what is being done while it takes long."""
        if self.quiet or not sys.stderr.isatty():
            yield
            return
        from specprefill_cli.reporting.safe import plain

        with self.console.status(plain(text)):
            yield


def close_broken_pipe() -> None:
    """The reader of our output has gone (`| head`): let Python's own flush at exit go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

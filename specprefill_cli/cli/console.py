"""Standard error for people: progress, notes, tables. Standard output belongs to the answer."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def console(stream: TextIO, piped_width: int = 200) -> Console:
    """A rich console on a stream; a pipe has no width, and gets one at which no row is broken into many."""
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            # rich would end the program with 1; whoever runs the command decides.
            raise BrokenPipeError

    return PipeConsole(file=stream, highlight=False, width=None if stream.isatty() else piped_width)


class Notes:
    """Writes to standard error; silent when quiet. Progress is shown on a terminal only."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet

    @property
    def console(self) -> Console:
        return console(sys.stderr, 120)

    def show(self, renderable: RenderableType) -> None:
        if not self.quiet:
            self.console.print(renderable)

    def tell(self, text: str) -> None:
        """A text as it is: what looks like markup in it is none."""
        from specprefill_cli.reporting.safe import plain

        self.show(plain(text))

    def warn(self, text: str) -> None:
        """A warning in one line, also where standard error is no terminal; silent when quiet."""
        if not self.quiet:
            from specprefill_cli.reporting.safe import plain

            self.console.print(plain(f"warning: {text}", style="yellow"), soft_wrap=True)

    @contextmanager
    def progress(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show what is being done while it takes long; what it yields replaces the text."""
        if self.quiet or not sys.stderr.isatty():
            yield lambda _text: None
            return
        from specprefill_cli.reporting.safe import plain

        with self.console.status(plain(text)) as status:
            yield lambda newer: status.update(plain(newer))


def print_json(values: Mapping[str, Any]) -> None:
    """One JSON object on standard output, with its schema."""
    from specprefill_cli.reporting.jsonl import SCHEMA, line

    print(line({"schema": SCHEMA, **values}), flush=True)


def close_broken_pipe() -> None:
    """The reader of our output has gone (`| head`): let Python's own flush at exit go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

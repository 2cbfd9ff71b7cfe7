"""Progress, notes and tables on standard error; standard output is for the answer."""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cached_property, partial
from typing import Any, TextIO

from rich.console import Console, RenderableType

from specprefill_cli.record import SCHEMA, json_line
from specprefill_cli.reporting.text import plain


class PipeConsole(Console):
    """A console that nobody may read: on standard error it falls silent, else `PipeGroup` ends the command with code 0."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Rich pads every line of a table to its width: a pipe gets them without these spaces."""
        with self.capture() if not self.is_terminal else nullcontext() as captured:
            super().print(*objects, **options)
        if captured is not None:
            super().print(re.sub(r" +(?=\n)", "", captured.get()), end="", soft_wrap=True, markup=False, emoji=False)

    def on_broken_pipe(self) -> None:
        if not self.stderr:
            raise BrokenPipeError
        discard(sys.stderr)


def console(stream: TextIO, piped_width: int = 200) -> Console:
    """A rich console on a stream; on a pipe, wide enough to keep each table row on a single line, and without padding."""
    new_console = partial(PipeConsole, file=stream, stderr=stream is sys.stderr, highlight=False)
    return new_console() if stream.isatty() else new_console(width=piped_width)


class Notes:
    """Writes to standard error; silent if `quiet`. Shows progress only on a terminal."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet

    @cached_property
    def console(self) -> Console:
        """The console of all notes, so that lines are printed above its spinner."""
        return console(sys.stderr, 120)

    def show(self, renderable: RenderableType) -> None:
        if not self.quiet:
            self.console.print(renderable)

    def line(self, text: str, style: str = "") -> None:
        """Show a text literally on a single line, however narrow the terminal."""
        if not self.quiet:
            self.console.print(plain(text, style=style), soft_wrap=True)

    def warn(self, text: str) -> None:
        self.line(f"warning: {text}", style="yellow")

    @contextmanager
    def progress(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show a spinner with a text during the block; yield a function that replaces the text."""
        if self.quiet or not sys.stderr.isatty():
            yield lambda _text: None
            return
        with self.console.status(plain(text)) as status:
            yield lambda new_text: status.update(plain(new_text))


def print_json(values: Mapping[str, Any]) -> None:
    """Print a JSON object with its schema on standard output."""
    print(json_line({"schema": SCHEMA, **values}), flush=True)


def discard(stream: TextIO) -> None:
    """Send what a stream still holds, and all later output, to the null device: Python's flush at exit then succeeds."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

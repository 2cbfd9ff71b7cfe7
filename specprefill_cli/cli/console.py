"""Progress, notes and tables on standard error; standard output belongs to the answer."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TextIO, cast

from rich.console import Console, RenderableType

from specprefill_cli.reporting.safe import plain


class TrimmedStream:
    """A stream that drops the spaces at the ends of lines: rich pads every line of a table to its width."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        return self.stream.write(re.sub(r" +(?=\n)", "", text))


class PipeConsole(Console):
    """A console that raises BrokenPipeError; rich would exit with 1, and `PipeGroup` exits with 0."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class NotesConsole(Console):
    """A console on standard error that falls silent when nobody reads it: the answer does not depend on it."""

    def on_broken_pipe(self) -> None:
        discard(sys.stderr)


def console(stream: TextIO, piped_width: int = 200, console_class: type[Console] = PipeConsole) -> Console:
    """A rich console on a stream; on a pipe it is so wide that table rows stay on one line, and pads nothing."""
    if stream.isatty():
        return console_class(file=stream, highlight=False)
    return console_class(file=cast(TextIO, TrimmedStream(stream)), highlight=False, width=piped_width)


class Notes:
    """Writes to standard error; silent when quiet. Progress is shown on a terminal only."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet

    @cached_property
    def console(self) -> Console:
        """One console for all: lines are printed above its spinner."""
        return console(sys.stderr, 120, NotesConsole)

    def show(self, renderable: RenderableType) -> None:
        if not self.quiet:
            self.console.print(renderable)

    def tell(self, text: str) -> None:
        """Show a text literally: markup in it means nothing."""
        self.show(plain(text))

    def line(self, text: str, style: str = "") -> None:
        """Show a text literally on one line, however narrow the terminal."""
        if not self.quiet:
            self.console.print(plain(text, style=style), soft_wrap=True)

    def warn(self, text: str) -> None:
        """Show a warning on one line."""
        self.line(f"warning: {text}", style="yellow")

    @contextmanager
    def progress(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show a spinner with a text while the block runs; the function that it yields replaces the text."""
        if self.quiet or not sys.stderr.isatty():
            yield lambda _text: None
            return
        with self.console.status(plain(text)) as status:
            yield lambda new_text: status.update(plain(new_text))

    @contextmanager
    def bar(self, unit: str, total: int | None) -> Iterator[Callable[[int, str], None]]:
        """Show how much of a total (None: unknown) is done, and when the rest will be; the function takes count and text."""
        if self.quiet or not sys.stderr.isatty():
            yield lambda _done, _text: None
            return
        from rich.markup import escape
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task(f"waiting for the first of the {unit}", total=total)
            yield lambda done, text: progress.update(task, completed=done, description=escape(plain(text).plain))


def print_json(values: Mapping[str, Any]) -> None:
    """One JSON object on standard output, with its schema."""
    from specprefill_cli.record import SCHEMA, json_line

    print(json_line({"schema": SCHEMA, **values}), flush=True)


def close_broken_pipe() -> None:
    """Nobody takes our output any more (`| head`, or a full disk): let Python's own flush at exit go nowhere."""
    discard(sys.stdout)


def discard(stream: TextIO) -> None:
    """Let all that a stream still holds, and all that follows, go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

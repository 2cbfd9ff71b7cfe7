"""The interactive session of `compare`: what each line does, and the prompt at which lines are typed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType

from specprefill_cli.cli.console import Notes
from specprefill_cli.cli.options import setting_values
from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.reporting.safe import plain
from specprefill_cli.reporting.table import plain_table
from specprefill_cli.settings import AUTO, Settings, parse_setting

if TYPE_CHECKING:
    from prompt_toolkit.history import History

    from specprefill_cli.answering.session import Session
    from specprefill_cli.documents.document import Collection
    from specprefill_cli.record import Comparison

HELP = {
    "/mode": "[MODES] modes to compare, comma-separated",
    "/keep": "[RATIO] keep ratio, the share of prompt tokens that the target computes: 0 to 1, or auto",
    "/help": "this list",
    "/exit": "leave; Ctrl-D does too",
}
PROMPT = "specprefill> "


@dataclass
class Repl:
    """The state of a session between lines.

    show_progress: shows what is being done; comparison: the answers to the last question
    failed: whether the last line ended in an error, or was cancelled
    """

    session: Session
    collection: Collection
    settings: Settings
    modes: Sequence[str]
    show_progress: Callable[[str], None] = lambda _text: None
    comparison: Comparison | None = None
    failed: bool = False
    ended: bool = False

    def handle(self, line: str) -> RenderableType | None:
        """Run a command or answer a question, and return what to show; neither an error nor Ctrl-C ends the session."""
        line, self.failed = line.strip(), False
        try:
            if not line:
                return None
            return self.command(line) if line.startswith("/") else self.ask(line)
        except BrokenPipeError:
            raise
        except SpecprefillError as error:
            reply = plain(f"error: {error}", style="red")
        except Exception as error:
            # After one question that exhausts a device's memory, for example, others can still be answered.
            reply = plain(f"error: {type(error).__name__}: {error}", style="red")
        except KeyboardInterrupt:
            reply = plain("cancelled; the session goes on", style="yellow")
        self.failed = True
        return reply

    def command(self, line: str) -> RenderableType | None:
        """Run a command of `HELP`. Raises UsageError for an unknown one."""
        name, _, argument = line.partition(" ")
        if name not in HELP:
            raise UsageError(f"{name}: no such command; /help lists them")
        return getattr(self, f"do_{name[1:]}")(argument.strip())

    def ask(self, question: str) -> RenderableType:
        """Answer a question in all modes."""
        from specprefill_cli.answering.comparison import compare_modes
        from specprefill_cli.reporting.comparison_table import comparison_view

        self.comparison = None
        self.comparison = compare_modes(
            self.session,
            self.collection,
            question,
            self.settings,
            self.modes,
            lambda mode: self.show_progress(f"answering in mode {mode}"),
        )
        return comparison_view(self.comparison)

    def do_mode(self, argument: str) -> RenderableType:
        if argument:
            self.modes = setting_values("mode", argument, "/mode")
        return plain(f"mode {','.join(self.modes)}")

    def do_keep(self, argument: str) -> RenderableType:
        if argument:
            self.settings = self.settings.varied(keep=parse_setting("keep", argument, "/keep"))
        return plain(f"keep {self.settings.keep or AUTO}")

    def do_help(self, _argument: str) -> RenderableType:
        """The commands and what they do."""
        table = plain_table()
        for name, meaning in (HELP | {"anything else": "a question about the documents"}).items():
            table.add_row(name, plain(meaning))
        return table

    def do_exit(self, _argument: str) -> None:
        self.ended = True


def run_repl(repl: Repl, lines: Iterable[str], out: Console, notes: Notes) -> None:
    """Handle lines until they end or `/exit` ends the session; errors go to standard error, as notes do."""
    for line in lines:
        with notes.progress("answering") as update:
            repl.show_progress = update
            reply = repl.handle(line)
        if reply is not None:
            (notes.console if repl.failed else out).print(reply)
        if repl.ended:
            return


def prompted_lines(history: History) -> Iterator[str]:
    """Lines typed at the prompt; Ctrl-C drops a line, Ctrl-D ends the input."""
    from prompt_toolkit import PromptSession

    session: PromptSession[str] = PromptSession(history=history)
    while True:
        try:
            yield session.prompt(PROMPT)
        except KeyboardInterrupt:
            continue
        except EOFError:
            return


def open_history() -> History:
    """Earlier lines, in a private file in the user's state folder; in memory where that cannot be written."""
    import platformdirs
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    path = Path(platformdirs.user_state_dir("specprefill")) / "history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))

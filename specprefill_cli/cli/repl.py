"""The interactive session of `compare`: what each line does, and the prompt at which lines are typed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType

from specprefill_cli.cli.console import Notes, plain_table
from specprefill_cli.cli.inputs import check_no_document, write_page
from specprefill_cli.cli.options import setting_values, suggestions
from specprefill_cli.cli.plan import plan_report
from specprefill_cli.errors import SpecprefillError, UsageError, one_line
from specprefill_cli.files import check_can_write, write_whole
from specprefill_cli.reporting.safe import plain
from specprefill_cli.settings import AUTO, Settings, parse_setting

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.history import History

    from specprefill_cli.answering.comparison import Comparison, ModeAnswer
    from specprefill_cli.documents.document import Collection

HELP = {
    "/mode": "[MODES] modes to compare, comma-separated",
    "/keep": "[RATIO] keep ratio, the share of prompt tokens that the target computes: 0 to 1, or auto",
    "/look-ahead": "[N] tokens the draft decodes before scoring",
    "/speculate": "[K] tokens proposed at once: off, auto or a number",
    "/documents": "[D...] the documents; with names, read these instead",
    "/plan": "[QUESTION] show the chunks kept for it, or for the last one",
    "/save": "FILE the last comparison as a page (.html) or as JSON (.json)",
    "/help": "this list",
    "/exit": "leave; Ctrl-D does too",
}
SETTINGS = {"/keep": "keep", "/look-ahead": "look_ahead", "/speculate": "speculate"}
PROMPT = "specprefill> "
PATHS = ("/documents", "/save")


@dataclass
class Repl:
    """The state of a session between lines.

    read: reads documents by name; show_progress: shows what is being done
    question, compared: the last question and its answers
    failed: whether the last line ended in an error, or was cancelled
    """

    comparison: Comparison
    settings: Settings
    modes: tuple[str, ...]
    read: Callable[[Sequence[str]], Collection]
    show_progress: Callable[[str], None] = lambda _text: None
    question: str = ""
    compared: list[ModeAnswer] = field(default_factory=list)
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
            shown = plain(f"error: {error}", style="red")
        except Exception as error:
            # After one question that exhausts a device's memory, for example, others can still be answered.
            shown = plain(f"error: {type(error).__name__}: {error}", style="red")
        except KeyboardInterrupt:
            shown = plain("cancelled; the session goes on", style="yellow")
        self.failed = True
        return shown

    def command(self, line: str) -> RenderableType | None:
        """Run a command of `HELP`. Raises UsageError for an unknown one."""
        name, _, argument = line.partition(" ")
        argument = argument.strip()
        if name in SETTINGS:
            return self.change(SETTINGS[name], argument)
        if name not in HELP:
            raise UsageError(f"{name}: no such command; /help lists them")
        return getattr(self, f"do_{name[1:]}")(argument)

    def ask(self, question: str) -> RenderableType:
        from specprefill_cli.reporting.comparison_table import comparison_view

        self.compared = self.comparison.ask(
            question, self.settings, self.modes, lambda mode: self.show_progress(f"answering in mode {mode}")
        )
        self.question = question
        return comparison_view(self.compared, self.comparison.misfits)

    def change(self, name: str, argument: str) -> RenderableType:
        """Change one setting; without a value, show it."""
        command = "/" + name.replace("_", "-")
        if argument:
            self.settings = self.settings.varied(**{name: parse_setting(name, argument, command)})
        value = getattr(self.settings, name)
        return plain(f"{command[1:]} {AUTO if value is None else value}")

    def do_mode(self, argument: str) -> RenderableType:
        if argument:
            self.modes = tuple(setting_values("mode", argument, "/mode"))
        return plain(f"mode {','.join(self.modes)}")

    def do_documents(self, argument: str) -> RenderableType:
        if argument:
            self.comparison.collection = self.read(paths(argument))
            self.question, self.compared = "", []
        table = plain_table("document", "pages", "characters")
        for document in self.comparison.collection.documents:
            table.add_row(plain(one_line(document.name)), str(len(document.pages)), f"{len(document.text):,}")
        return table

    def do_plan(self, argument: str) -> RenderableType:
        question = argument or self.question
        if not question:
            raise UsageError("/plan: no question was asked yet; give one after the command")
        run = self.comparison.plan(question, self.settings)
        return plan_report(run, self.comparison.collection, self.settings.chunk_size)

    def do_save(self, argument: str) -> RenderableType:
        if not self.compared:
            raise UsageError("no question was asked yet about these documents")
        # A name with blanks may stand in quotes.
        path = Path(argument[1:-1] if argument[:1] == argument[-1:] and argument[:1] in ("'", '"') else argument)
        path = path.expanduser()
        if path.suffix not in (".html", ".json"):
            raise UsageError("/save: give a file that ends with .html or .json")
        check_can_write(path, "/save")
        check_no_document(path, self.comparison.collection, "/save")
        write_comparison(path, self.question, self.comparison, self.compared)
        return plain(f"written to {path}")

    def do_help(self, _argument: str) -> RenderableType:
        """The commands and what they do."""
        table = plain_table()
        for name, meaning in HELP.items():
            # Brackets would be markup.
            table.add_row(name, meaning.replace("[", r"\["))
        table.add_row("anything else", "a question about the documents")
        return table

    def do_exit(self, _argument: str) -> None:
        self.ended = True


def paths(argument: str) -> list[str]:
    """Split a line into names as a shell does, with quotes and `~`; on Windows a backslash is part of a path.

    Raises UsageError for an open quote, and for standard input, which holds the questions.
    """
    lexer = shlex.shlex(argument, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    if os.sep == "\\":
        lexer.escape = ""
    try:
        names = list(lexer)
    except ValueError as error:
        raise UsageError(f"/documents: {error}; close the quotes") from error
    if "-" in names:
        raise UsageError("/documents -: standard input holds the questions; name files")
    return [os.path.expanduser(name) for name in names]


def write_comparison(path: Path, question: str, comparison: Comparison, compared: Sequence[ModeAnswer]) -> None:
    """Write a comparison as JSON to a file that ends with .json, else as a page."""
    from specprefill_cli.record import json_line
    from specprefill_cli.reporting.comparison_table import comparison_record, comparison_results

    if path.suffix == ".json":
        write_whole(path, json_line(comparison_record(question, compared, comparison.misfits)) + "\n")
    else:
        write_page(path, question, comparison.collection, comparison_results(compared, comparison.misfits))


def run_repl(repl: Repl, lines: Iterable[str], out: Console, notes: Notes) -> None:
    """Handle lines until they end or `/exit` ends the session; errors go to standard error, as notes do."""
    for line in lines:
        with notes.progress("answering") as update:
            repl.show_progress = update
            shown = repl.handle(line)
        if shown is not None:
            (notes.console if repl.failed else out).print(shown)
        if repl.ended:
            return


def prompted_lines(history: History) -> Iterator[str]:
    """Lines typed at the prompt; Ctrl-C drops a line, Ctrl-D ends the input."""
    from prompt_toolkit import PromptSession

    session: PromptSession[str] = PromptSession(history=history, completer=completer(), complete_while_typing=False)
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


def completer() -> Completer:
    """A completer of commands and their arguments."""
    from prompt_toolkit.completion import Completer, PathCompleter, WordCompleter
    from prompt_toolkit.document import Document

    commands = WordCompleter(list(HELP), sentence=True)
    paths = PathCompleter(expanduser=True)
    arguments: dict[str, Completer] = dict.fromkeys(PATHS, paths)
    for command, name in {**SETTINGS, "/mode": "mode"}.items():
        arguments[command] = WordCompleter(list(suggestions(name)))

    class LineCompleter(Completer):
        def get_completions(self, document: Document, complete_event: Any) -> Iterable[Any]:
            name, space, rest = document.text_before_cursor.partition(" ")
            if not space:
                return commands.get_completions(document, complete_event)
            if name not in arguments:
                return ()
            return arguments[name].get_completions(Document(rest.rpartition(" ")[2]), complete_event)

    return LineCompleter()

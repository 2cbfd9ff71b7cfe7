"""The interactive session of `compare`: what each line does."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from specprefill_cli.cli.lists import split
from specprefill_cli.errors import SpecprefillError, UsageError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from specprefill_cli.answering.comparison import Compared, Comparison
    from specprefill_cli.cli.console import Notes
    from specprefill_cli.documents.collection import Collection
    from specprefill_cli.settings import Settings

HELP = {
    "/mode": "[MODES] modes to compare, comma-separated",
    "/keep": "[RATIO] share of prompt tokens the target computes: 0 to 1, or auto",
    "/look-ahead": "[N] tokens the draft decodes before scoring",
    "/speculate": "[K] tokens proposed ahead: off, auto or a number",
    "/documents": "[D...] the documents; with names: read these instead",
    "/sources": "where the last answers stand in the documents",
    "/plan": "[QUESTION] what would be kept for it, or for the last one",
    "/stats": "figures of this session",
    "/save": "FILE the last comparison as a page (.html) or as JSON (.json)",
    "/help": "this list",
    "/exit": "leave; Ctrl-D does too",
}
SETTINGS = {"/keep": "keep", "/look-ahead": "look_ahead", "/speculate": "speculate"}


@dataclass
class Repl:
    """What a session remembers between lines.

    read: makes a collection of the names of documents
    asked, compared: the last question and its answers; times: seconds to the first token by mode
    """

    comparison: Comparison
    settings: Settings
    modes: tuple[str, ...]
    read: Callable[[Sequence[str]], Collection]
    step: Callable[[str], None] = lambda _mode: None
    asked: str = ""
    compared: list[Compared] = field(default_factory=list)
    times: dict[str, list[float]] = field(default_factory=dict)
    ended: bool = False

    def handle(self, line: str) -> RenderableType | None:
        """What to show for a line: a command, or a question. An error, or Ctrl-C, is shown and ends nothing."""
        from specprefill_cli.reporting.safe import plain

        line = line.strip()
        try:
            if not line:
                return None
            return self.command(line) if line.startswith("/") else self.ask(line)
        except SpecprefillError as error:
            return plain(f"error: {error}", style="red")
        except BrokenPipeError:
            raise
        except Exception as error:
            # A device out of memory at one question, for example: what is loaded and cached serves the next one.
            return plain(f"error: {type(error).__name__}: {error}", style="red")
        except KeyboardInterrupt:
            return plain("cancelled; the session goes on", style="yellow")

    def command(self, line: str) -> RenderableType | None:
        name, _, argument = line.partition(" ")
        argument = argument.strip()
        if name in SETTINGS:
            return self.change(SETTINGS[name], argument)
        commands: dict[str, Callable[[str], RenderableType | None]] = {
            "/mode": self.choose_modes,
            "/documents": self.show_documents,
            "/sources": self.show_sources,
            "/plan": self.show_plan,
            "/stats": self.show_stats,
            "/save": self.save,
            "/help": show_help,
            "/exit": self.leave,
        }
        if name not in commands:
            raise UsageError(f"{name}: no such command; /help lists them")
        return commands[name](argument)

    def ask(self, question: str) -> RenderableType:
        from specprefill_cli.reporting.comparison_table import comparison_table

        self.compared = self.comparison.ask(question, self.settings, self.modes, self.step)
        self.asked = question
        for one in self.compared:
            self.times.setdefault(one.asked, []).append(one.answer.ttft_seconds)
        return comparison_table(self.compared)

    def change(self, name: str, argument: str) -> RenderableType:
        """Set one setting; without a value, show it."""
        from specprefill_cli.reporting.safe import plain
        from specprefill_cli.settings import AUTO, convert, flag

        if argument:
            self.settings = replace(self.settings, **{name: convert(name, argument, flag(name).replace("--", "/"))})
        value = getattr(self.settings, name)
        return plain(f"{name.replace('_', '-')} {AUTO if value is None else value}")

    def choose_modes(self, argument: str) -> RenderableType:
        from specprefill_cli.reporting.safe import plain

        if argument:
            self.modes = parse_modes(argument, self.settings)
        return plain(f"mode {','.join(self.modes)}")

    def show_documents(self, argument: str) -> RenderableType:
        from rich.table import Table

        from specprefill_cli.reporting.safe import plain

        if argument:
            self.comparison.collection = self.read(paths(argument))
            self.asked, self.compared = "", []
        table = Table("document", "pages", "characters", box=None, padding=(0, 2, 0, 0))
        for one in self.comparison.collection.documents:
            table.add_row(plain(one.name), str(len(one.pages)), f"{len(one.text):,}")
        return table

    def show_sources(self, _argument: str) -> RenderableType:
        from specprefill_cli.reporting.comparison_table import sources_table

        self.need_answers()
        return sources_table(self.compared)

    def show_plan(self, argument: str) -> RenderableType:
        from rich.console import Group

        from specprefill_cli.reporting import dry_run_report as plan_report
        from specprefill_cli.reporting.strip import heat_strip, legend

        question = argument or self.asked
        if not question:
            raise UsageError("/plan: no question was asked yet; give one behind it")
        run = self.comparison.plan(question, self.settings)
        cells = plan_report.plan_cells(run, self.comparison.collection, self.settings.chunk_size)
        # Density tells levels apart with and without colour.
        return Group(
            heat_strip(self.comparison.collection, cells, False),
            legend(self.settings.chunk_size, False),
            plan_report.plan_table(run),
            plan_report.estimate_table(plan_report.estimate_rows(run)),
        )

    def show_stats(self, _argument: str) -> RenderableType:
        from rich.table import Table

        from specprefill_cli.reporting.safe import plain
        from specprefill_cli.reporting.table import seconds

        table = Table("mode", "questions", "median TTFT", "fastest", box=None, padding=(0, 2, 0, 0))
        for mode, times in self.times.items():
            table.add_row(plain(mode), str(len(times)), seconds(statistics.median(times)), seconds(min(times)))
        return table if self.times else plain("no question was asked yet")

    def save(self, argument: str) -> RenderableType:
        from specprefill_cli.cli import options
        from specprefill_cli.files import check_can_write
        from specprefill_cli.reporting.safe import plain

        self.need_answers()
        path = Path(argument).expanduser()
        if path.suffix not in (".html", ".json"):
            raise UsageError("/save: give a file that ends with .html or .json")
        check_can_write(path, "/save")
        options.check_no_document(path, self.comparison.collection, "/save")
        write_comparison(path, self.asked, self.comparison.collection, self.compared)
        return plain(f"written to {path}")

    def leave(self, _argument: str) -> None:
        self.ended = True

    def need_answers(self) -> None:
        if not self.compared:
            raise UsageError("no question was asked yet about these documents")


def show_help(_argument: str) -> RenderableType:
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, meaning in HELP.items():
        # A list in brackets is no markup.
        table.add_row(name, meaning.replace("[", r"\["))
    table.add_row("anything else", "a question about the documents")
    return table


def parse_modes(text: str, settings: Settings) -> tuple[str, ...]:
    """Names of modes with commas between them, each once. Raises UsageError for an unknown one."""
    from specprefill_cli.answering.session import check_names

    modes = tuple(split(text, "--modes"))
    for mode in modes:
        check_names(replace(settings, mode=mode))
    return modes


def paths(argument: str) -> list[str]:
    """The names in a line as a shell reads them: quotes, `~`; on Windows a backslash is part of a path.

    Raises UsageError for an open quote, and for standard input, which holds the questions.
    """
    import os
    import shlex

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


def write_comparison(path: Path, question: str, collection: Collection, compared: Sequence[Compared]) -> None:
    """Write a comparison as JSON, or for any other ending as a page."""
    from specprefill_cli.cli import options
    from specprefill_cli.files import write_whole
    from specprefill_cli.reporting.comparison_table import comparison_record
    from specprefill_cli.reporting.html import answer_result
    from specprefill_cli.reporting.jsonl import line

    if path.suffix == ".json":
        write_whole(path, line(comparison_record(question, compared)) + "\n")
    else:
        options.write_html(path, question, collection, [answer_result(one.answer, one.cells) for one in compared])


def run_repl(repl: Repl, lines: Iterable[str], out: Console, notes: Notes) -> None:
    """Handle lines until they end, or one of them ends the session."""
    for line in lines:
        with notes.progress("answering") as update:
            repl.step = lambda mode, update=update: update(f"answering in mode {mode}")
            shown = repl.handle(line)
        if shown is not None:
            out.print(shown)
        if repl.ended:
            return

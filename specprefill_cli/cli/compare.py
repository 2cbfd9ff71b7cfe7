"""`specprefill compare`: modes side by side, for one question or in an interactive session."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from specprefill_cli.cli.console import Notes, console, print_json
from specprefill_cli.cli.inputs import names_document, read_inputs, write_page
from specprefill_cli.cli.loading import open_ready_session
from specprefill_cli.cli.options import MODE_LIST, Html, Json, Quiet, with_settings
from specprefill_cli.errors import INTERRUPTED, TERMINATED, UsageError
from specprefill_cli.reporting.safe import plain
from specprefill_cli.settings import Settings

if TYPE_CHECKING:
    from specprefill_cli.cli.repl import Repl


@with_settings("documents", "models", "prefill", "decoding", "cache", "output", lists=(MODE_LIST,))
def compare(
    documents: Annotated[
        list[str],
        typer.Argument(
            metavar="DOCUMENTS... [QUESTION]",
            help="Files, folders or globs, then the question in quotes. Without a question, start a session.",
            show_default=False,
        ),
    ],
    question: Annotated[
        str | None, typer.Option(help="The question, if it could be taken for a document.", show_default="none")
    ] = None,
    *,
    settings: Settings,
    modes: list[str],
    json: Json = False,
    html: Html = None,
    quiet: Quiet = False,
) -> None:
    """Answer in each mode with the same models. Show answers, times and differences side by side.

    Without a question, start a session: every line is a question, and /help lists commands. Several modes start cold for
    every question, for comparable times. A single mode reuses the KV of earlier questions about the same documents; the
    table says so, and --memory-cache 0 turns it off.

    Examples:
      specprefill compare report.pdf "What is the notice period?"

      specprefill compare report.pdf "Who signed?" --keep 0.1 --html page.html

      specprefill compare report.pdf
    """
    names, question = split_question(documents, question)
    if question is None:
        check_session_input(names, to_file=json or html is not None)
    notes = Notes(quiet)
    collection = read_inputs(names, html, settings, notes)
    variants = [settings.varied(mode=mode) for mode in modes]
    session = open_ready_session(variants, notes, any_mode=question is None)
    from specprefill_cli.cli.repl import Repl
    from specprefill_cli.prefill.prefix_cache import document_cache

    session = session.with_cache(document_cache(settings.memory_cache, session.pair))
    repl = Repl(session, collection, settings, modes)
    if question is None:
        run_session(repl, notes)
    else:
        answer_once(repl, question, json, html, notes)


def check_session_input(names: Sequence[str], to_file: bool) -> None:
    """Raises UsageError for arguments that only go with a question."""
    if to_file:
        raise UsageError("--json and --html need a question; give it after the documents")
    if "-" in names:
        raise UsageError(
            "standard input cannot be a document here: the session reads its lines from it; give a question"
        )
    if sys.stdin is None:
        raise UsageError("standard input is closed; give a question after the documents")


def run_session(repl: Repl, notes: Notes) -> None:
    """Answer the lines that are typed, or read from a pipe."""
    from specprefill_cli.cli.repl import open_history, prompted_lines, run_repl

    # Ctrl-C ends an answer; SIGTERM ends the session.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    out = console(sys.stdout)
    if sys.stdin.isatty():
        notes.tell("Ask about the documents; /help lists commands, /exit leaves.")
        lines = prompted_lines(open_history())
    else:
        # A line in another encoding is asked with replacement characters.
        sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]
        lines = echo_lines(iter(sys.stdin.readline, ""), out)
    run_repl(repl, lines, out, notes)


def answer_once(repl: Repl, question: str, json: bool, html: Path | None, notes: Notes) -> None:
    """Answer one question in all modes: as a table or an object, and as a page."""
    try:
        with notes.progress("answering") as update:
            repl.show_progress = update
            table = repl.ask(question)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    assert repl.comparison is not None, "the question was answered"
    if html:
        write_page(html, repl.collection, repl.comparison)
    if json:
        print_json(repl.comparison.to_json())
    else:
        console(sys.stdout).print(table)


def echo_lines(lines: Iterable[str], out: Console) -> Iterator[str]:
    """Lines from a pipe, each shown before its answer."""
    for line in lines:
        out.print(plain(f"> {line.strip()}", style="dim"))
        yield line


def split_question(arguments: Sequence[str], question: str | None) -> tuple[list[str], str | None]:
    """The documents and the question: the last argument is one if it reads like one and does not name a file.

    Raises UsageError for an empty question.
    """
    from specprefill_cli.documents.cleaning import clean_question

    names = list(arguments)
    last = names[-1]
    like_question = len(last.split()) != 1 or last.endswith("?")
    if question is None and len(names) > 1 and like_question and not names_document(last):
        question = names.pop()
    if question is not None:
        clean_question(question)
    return names, question

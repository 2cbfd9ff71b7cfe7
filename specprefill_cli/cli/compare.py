"""`specprefill compare`: modes side by side, for a single question or in a session."""

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Annotated

import typer
from rich.console import Console

from specprefill_cli.cli.console import Notes, console, print_json
from specprefill_cli.cli.loading import names_document, open_ready_session, read_inputs, write_page
from specprefill_cli.cli.options import MODE_LIST, Html, Json, Quiet, with_settings
from specprefill_cli.documents.cleaning import clean_question
from specprefill_cli.errors import INTERRUPTED, TERMINATED, SpecprefillError, UsageError
from specprefill_cli.record import Comparison
from specprefill_cli.reporting.text import plain
from specprefill_cli.settings import Settings


@with_settings("documents", "models", "prefill", "decoding", "cache", "output", lists=(MODE_LIST,))
def compare(
    documents: Annotated[
        list[str],
        typer.Argument(
            metavar="DOCUMENTS",
            help="Files, folders or globs, then the question in quotes (one word: with a ?). Without one, start a session.",
            show_default=False,
        ),
    ],
    *,
    settings: Settings,
    modes: list[str],
    json: Json = False,
    html: Html = None,
    quiet: Quiet = False,
) -> None:
    """Answer in each mode with the same models. Show answers, times and differences side by side.

    Without a question, start a session: every line is a question. Several modes start cold for every question, for
    comparable times. A single mode reuses the KV of earlier questions about the same documents; the table says so, and
    --memory-cache 0 turns it off.

    Examples:
      specprefill compare report.pdf "Who signed?" --keep 0.1 --html page.html

      specprefill compare report.pdf
    """
    documents, question = split_question(documents)
    if question is None and (json or html is not None):
        raise UsageError("--json and --html need a question; give it after the documents")
    if question is None and "-" in documents:
        raise UsageError("standard input cannot be a document here: the session reads lines from it; give a question")
    notes = Notes(quiet)
    collection = read_inputs(documents, html, settings, notes)
    session = open_ready_session([settings.varied(mode=mode) for mode in modes], notes)
    from specprefill_cli.answering.tasks import compare_modes
    from specprefill_cli.prefill.prefix_cache import document_cache
    from specprefill_cli.prefill.shortlist import shortlist

    session = session.with_cache(document_cache(settings.memory_cache, session.pair))

    def ask(question: str) -> Comparison:
        with notes.progress("answering") as update:
            read = shortlist(collection, question, settings)
            on_mode = lambda mode: update(f"answering in mode {mode}")  # noqa: E731
            return compare_modes(session, read, question, settings, modes, on_mode)

    if question is None:
        return answer_lines(ask, notes)
    try:
        comparison = ask(question)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    if json:
        print_json(comparison.to_json())
    else:
        from specprefill_cli.reporting.table import comparison_view

        console(sys.stdout).print(comparison_view(comparison))
    if html:
        write_page(html, collection, comparison, settings)


def answer_lines(ask: Callable[[str], Comparison], notes: Notes) -> None:
    """Answer lines from the terminal or a pipe; neither an error nor Ctrl-C ends the session."""
    from specprefill_cli.reporting.table import comparison_view

    # Ctrl-C ends an answer; SIGTERM ends the session.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    out = console(sys.stdout)
    for line in filter(None, map(str.strip, read_lines(out, notes))):
        try:
            out.print(comparison_view(ask(line)))
        except BrokenPipeError:
            raise
        except KeyboardInterrupt:
            notes.console.print(plain("cancelled; the session goes on", style="yellow"))
        except Exception as error:
            # The session can go on, for example after a question that exhausted a device's memory.
            name = "" if isinstance(error, SpecprefillError) else f"{type(error).__name__}: "
            notes.console.print(plain(f"error: {name}{error}", style="red"))


def read_lines(out: Console, notes: Notes) -> Iterator[str]:
    """Yield lines from a prompt, where Ctrl-C drops a line and Ctrl-D ends the input, or from a pipe, echoing them."""
    # Replace undecodable characters of a line in another encoding.
    sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]
    if not sys.stdin.isatty():
        for line in sys.stdin:
            out.print(plain(f"> {line.strip()}", style="dim"))
            yield line
        return
    with suppress(ImportError):
        # Gives `input` cursor keys and a history.
        import readline  # noqa: F401
    notes.line("Ask about the documents; Ctrl-D ends the session.")
    with suppress(EOFError):
        while True:
            try:
                yield input("specprefill> ")
            except KeyboardInterrupt:
                print()


def split_question(arguments: Sequence[str]) -> tuple[list[str], str | None]:
    """Split arguments: the last is the question if it reads like one and names no file. Raises UsageError if it is empty."""
    *documents, last_argument = arguments
    reads_like_question = len(last_argument.split()) != 1 or last_argument.endswith("?")
    if not documents or not reads_like_question or names_document(last_argument):
        return list(arguments), None
    clean_question(last_argument)
    return documents, last_argument

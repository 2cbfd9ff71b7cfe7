"""`specprefill ask`: a question about documents."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from specprefill_cli.cli.console import Notes, print_json
from specprefill_cli.cli.loading import (
    check_arguments,
    find_server,
    open_engine,
    open_ready_session,
    read_inputs,
    write_page,
)
from specprefill_cli.cli.options import OUTPUT, Documents, Html, Json, NoServer, Question, Quiet, with_settings
from specprefill_cli.engine.request import Done, Event, Piece, Provisional, Request, WaitingEngine
from specprefill_cli.errors import INTERRUPTED, SpecprefillError
from specprefill_cli.files import STANDARD_INPUT
from specprefill_cli.record import Comparison, ModeAnswer, Record
from specprefill_cli.reporting.safe import printable
from specprefill_cli.settings import Settings

if TYPE_CHECKING:
    from specprefill_cli.documents.document import Collection


@with_settings("documents", "models", "prefill", "decoding", "output")
def ask(
    documents: Documents = None,
    question: Question = None,
    *,
    settings: Settings,
    json: Json = False,
    no_stream: Annotated[
        bool, typer.Option("--no-stream", help="Print the answer when it is complete.", rich_help_panel=OUTPUT)
    ] = False,
    html: Html = None,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", help="Show all figures, not only the most important ones.", rich_help_panel=OUTPUT
        ),
    ] = False,
    quiet: Quiet = False,
    no_server: NoServer = False,
) -> None:
    """Answer a question about documents. The answer goes to standard output, passages and figures to standard error.

    Rarer options are in docs/reference.md; `specprefill config show` lists all settings.

    Examples:
      specprefill ask report.pdf "What is the notice period?"

      specprefill ask docs/ notes.md "Who signed the lease?" --keep 0.2 --json

      specprefill ask report.pdf "What is the fee?" --html answer.html

      specprefill ask report.pdf "Who signed?" --target http://host:8000/v1#model

      curl -s https://example.org | specprefill ask - "What is it about?"
    """
    names, question = check_arguments("ask", documents, question)
    notes = Notes(quiet)
    # A server confirms no answers. A page needs the documents here, and standard input can be read only once.
    is_read_here = no_server or settings.confirm or (html is not None and STANDARD_INPUT in names)
    engine: WaitingEngine | None = None if is_read_here else find_server(settings, notes)
    collection = read_inputs(names, html, settings, notes) if engine is None or html is not None else None
    sent_documents: Collection | tuple[str, ...] = tuple(names)
    if engine is None and collection is not None:
        engine, sent_documents = open_engine(open_ready_session([settings], notes, single=True), settings), collection
    assert engine is not None, "a server, or an engine of this process"
    events = engine.ask(
        Request(documents=sent_documents, question=question, settings=settings, with_cells=html is not None)
    )
    with notes.progress("prefill"):
        next(events)
    # Text written to a pipe cannot be corrected afterwards.
    streaming = not (json or no_stream)
    at_once = not settings.confirm or (sys.stdout.isatty() and streaming)
    end = write_answer(events, streaming and at_once, at_once and not json)
    if isinstance(end, Provisional):
        with notes.progress("full prefill confirms the answer"):
            done = next(event for event in events if isinstance(event, Done))
    else:
        done = end
    if not (at_once or json):
        print(printable(done.result.answer), flush=True)
    if html is not None and collection is not None:
        answer = ModeAnswer(mode=settings.mode, answer=done.result, cells=done.cells)
        write_page(html, collection, Comparison(question=question, answers=[answer]), settings)
    show_figures(done.result, at_once, json, verbose, notes)
    if done.result.stopped == "interrupt":
        raise typer.Exit(INTERRUPTED)


def show_figures(answer: Record, at_once: bool, json: bool, verbose: bool, notes: Notes) -> None:
    """Print the answer as JSON, or show the outcome of the confirmation, the evidence, and the figures.

    at_once: whether the answer was written before its confirmation
    """
    if json:
        print_json(answer.to_json())
        return
    from specprefill_cli.reporting.evidence import evidence_view
    from specprefill_cli.reporting.table import answer_table, confirmation_text, short_table

    confirmation = confirmation_text(answer)
    if confirmation is not None:
        notes.line(confirmation)
    if at_once and answer.confirmed is False:
        print(f"corrected: {printable(answer.answer)}", flush=True)
    notes.show(evidence_view(answer))
    notes.show(answer_table(answer) if verbose else short_table(answer))


def write_answer(events: Iterator[Event], streaming: bool, write_now: bool) -> Provisional | Done:
    """Write the answer to standard output, in pieces or when it is complete, and return the event that ends it.

    write_now: whether to write it now; otherwise the caller writes it after the confirmation
    """
    text = ""
    try:
        for event in events:
            if not isinstance(event, Piece):
                break
            text += event.text
            if streaming:
                print(printable(event.text), end="", flush=True)
    except SpecprefillError:
        # Let the error begin a new line.
        if streaming and text:
            print(flush=True)
        raise
    if write_now:
        print("" if streaming else printable(text.strip()), flush=True)
    assert isinstance(event, Provisional | Done), "an answer ends so, or with an error"
    return event

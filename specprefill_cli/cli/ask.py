"""`specprefill ask`: one question about documents."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from specprefill_cli.cli.console import Notes, close_broken_pipe, print_json
from specprefill_cli.cli.inputs import checked_arguments, read_inputs, write_page
from specprefill_cli.cli.loading import open_engine, running_server
from specprefill_cli.cli.options import OUTPUT, Documents, Html, Json, Question, Quiet, with_settings
from specprefill_cli.documents.collect import STANDARD_INPUT
from specprefill_cli.engine.request import Done, Event, Piece, Provisional, Request
from specprefill_cli.errors import INTERRUPTED, SpecprefillError
from specprefill_cli.record import UNCONFIRMED, Comparison, ModeAnswer, Record
from specprefill_cli.reporting.safe import printable
from specprefill_cli.settings import Settings

if TYPE_CHECKING:
    from specprefill_cli.endpoint.session import EndpointEngine
    from specprefill_cli.engine.http import HttpEngine
    from specprefill_cli.engine.local import LocalEngine


@with_settings("documents", "models", "prefill", "decoding", "output", served=True)
def ask(
    context: typer.Context,
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
) -> None:
    """Answer a question about documents. The answer goes to standard output, passages and figures to standard error.

    Examples:
      specprefill ask report.pdf "What is the notice period?"

      specprefill ask docs/ notes.md "Who signed the lease?" --keep 0.2 --json

      specprefill ask report.pdf "What is the fee?" --html answer.html

      specprefill ask report.pdf "Who signed?" --target http://host:8000/v1#model

      curl -s https://example.org | specprefill ask - "What is it about?"
    """
    names, question = checked_arguments("ask", documents, question)
    notes = Notes(quiet)
    server = running_server(context, settings, notes)
    # The page shows the documents, which standard input gives only once.
    if html is not None and STANDARD_INPUT in names:
        server = None
    engine: HttpEngine | LocalEngine | EndpointEngine
    collection = None
    if server is None or html is not None:
        collection = read_inputs(names, html, settings, notes)
    if server is not None:
        engine = server
    else:
        engine = open_engine(context, settings, notes)
    request = Request(
        documents=tuple(names) if server is not None or collection is None else collection,
        question=question,
        settings=settings,
        with_cells=html is not None,
    )
    events = engine.ask(request)
    with notes.progress("reading the documents" if server is not None else "prefill"):
        next(events)
    # What was written to a pipe cannot be corrected.
    streaming = not (json or no_stream)
    at_once = not settings.confirm or (sys.stdout.isatty() and streaming)
    end = write_answer(events, streaming and at_once, at_once and not json, tolerant=html is not None)
    done = confirmed(end, events, notes)
    if not (at_once or json):
        print(printable(done.result.answer), flush=True)
    if html:
        assert collection is not None, "it was read for the page"
        answer = ModeAnswer(asked=settings.mode, answer=done.result, cells=done.cells)
        write_page(html, collection, Comparison(question=question, answers=[answer]))
    show_figures(done.result, at_once, json, verbose, notes)
    if done.result.stopped == "interrupt":
        raise typer.Exit(INTERRUPTED)


def show_figures(answer: Record, at_once: bool, json: bool, verbose: bool, notes: Notes) -> None:
    """Print the answer as JSON, or show what full prefill found, the evidence, and the figures.

    at_once: whether the answer was written before it was confirmed
    """
    if json:
        print_json(answer.to_json())
        return
    from specprefill_cli.reporting.evidence import evidence
    from specprefill_cli.reporting.table import answer_table, confirmation_text, short_table

    confirmation = confirmation_text(answer)
    if confirmation is not None:
        notes.tell(confirmation)
    if at_once and answer.confirmed is False:
        print(f"corrected: {printable(answer.answer)}", flush=True)
    notes.show(evidence(answer))
    notes.show(answer_table(answer) if verbose else short_table(answer))


def write_answer(events: Iterator[Event], streaming: bool, written: bool, tolerant: bool) -> Provisional | Done:
    """Write the answer to standard output, in pieces or at once, and return the event that ends it.

    written: whether it is written now; tolerant: as in `write`
    """
    text = ""
    try:
        for event in events:
            if not isinstance(event, Piece):
                break
            text += event.text
            if streaming:
                write(event.text, "", tolerant)
    except SpecprefillError:
        # The error begins a line of its own.
        if streaming and text:
            write("", "\n", tolerant)
        raise
    if written:
        write("" if streaming else text.strip(), "\n", tolerant)
    assert isinstance(event, Provisional | Done), "an answer ends so, or with an error"
    return event


def write(text: str, end: str, tolerant: bool) -> None:
    """Print at once. tolerant: the text goes elsewhere too, so that a reader may leave early (`| head -1`)."""
    try:
        print(printable(text), end=end, flush=True)
    except BrokenPipeError:
        if not tolerant:
            raise
        close_broken_pipe()


def confirmed(end: Provisional | Done, events: Iterator[Event], notes: Notes) -> Done:
    """Wait for the confirmation of an answer, which Ctrl-C leaves unconfirmed."""
    if isinstance(end, Done):
        return end
    try:
        with notes.progress("full prefill confirms the answer"):
            return next(event for event in events if isinstance(event, Done))
    except KeyboardInterrupt:
        # Of a server, which has no more to say.
        warnings = [*end.result.warnings, f"interrupted: {UNCONFIRMED}"]
        return Done(replace(end.result, stopped="interrupt", warnings=warnings))

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
from specprefill_cli.cli.options import OUTPUT, Documents, Given, Html, Json, Question, Quiet, with_settings
from specprefill_cli.documents.collect import STANDARD_INPUT
from specprefill_cli.engine.request import Done, Event, Piece, Provisional, Request
from specprefill_cli.errors import INTERRUPTED, SpecprefillError
from specprefill_cli.record import UNCONFIRMED, Record
from specprefill_cli.reporting.safe import printable
from specprefill_cli.settings import Settings, config_path

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
    given: Given,
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
        with notes.progress("loading the models"):
            engine = open_engine(context, settings, given, notes)
    request = Request(
        documents=tuple(names) if server is not None or collection is None else collection,
        question=question,
        settings=settings,
        with_cells=html is not None,
    )
    events = engine.ask(request)
    with notes.progress("reading the documents" if server is not None else "prefill"):
        next(events)
    ends: list[Provisional | Done] = []
    # What was written to a pipe cannot be corrected.
    streaming = not (json or no_stream)
    at_once = not settings.confirm or (sys.stdout.isatty() and streaming)
    pieces = pieces_of(events, ends)
    try:
        if at_once:
            write_answer(pieces, streaming, silent=json)
    except BrokenPipeError:
        if html is None:
            raise
        # Its reader left early (`| head -1`), but the answer goes to the page too.
        close_broken_pipe()
    done = last_event(events, pieces, ends, notes)
    if not (at_once or json):
        print(printable(done.result.answer), flush=True)
    if html:
        from specprefill_cli.reporting.html import answer_result

        assert collection is not None, "it was read for the page"
        write_page(html, question, collection, [answer_result(done.result, done.cells)])
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
    from specprefill_cli.reporting.evidence import BETTER_PAIR_HINT, evidence, needs_better_pair
    from specprefill_cli.reporting.table import answer_table, confirmation_text, short_table

    confirmation = confirmation_text(answer)
    if confirmation is not None:
        notes.tell(confirmation)
    if at_once and answer.confirmed is False:
        print(f"corrected: {printable(answer.answer)}", flush=True)
    notes.show(evidence(answer))
    if not notes.quiet and needs_better_pair(answer) and first_time("better-pair"):
        notes.tell(BETTER_PAIR_HINT)
    notes.show(answer_table(answer) if verbose else short_table(answer))


def pieces_of(events: Iterator[Event], ends: list[Provisional | Done]) -> Iterator[str]:
    """The pieces of an answer's text; the event that ends it goes to `ends`."""
    for event in events:
        if isinstance(event, Piece):
            yield event.text
        elif isinstance(event, Provisional | Done):
            ends.append(event)
            return


def last_event(events: Iterator[Event], pieces: Iterator[str], ends: list[Provisional | Done], notes: Notes) -> Done:
    """Wait for the end of the answer and of its confirmation, which Ctrl-C leaves unconfirmed."""
    list(pieces)
    end = ends[-1]
    if isinstance(end, Done):
        return end
    try:
        with notes.progress("full prefill confirms the answer"):
            list(pieces_of(events, ends))
    except KeyboardInterrupt:
        # Of a server, which has no more to say.
        warnings = [*end.result.warnings, f"interrupted: {UNCONFIRMED}"]
        return Done(replace(end.result, stopped="interrupt", warnings=warnings))
    done = ends[-1]
    assert isinstance(done, Done), "an answer is provisional once"
    return done


def write_answer(pieces: Iterator[str], streaming: bool, silent: bool) -> None:
    """Write the answer to standard output, in pieces or at once."""
    if streaming:
        begun = False
        try:
            for piece in pieces:
                print(printable(piece), end="", flush=True)
                begun = True
        except SpecprefillError:
            # The error begins a line of its own.
            if begun:
                print(flush=True)
            raise
    text = "".join(pieces).strip()
    if not silent:
        print(printable(text), flush=True)


def first_time(hint: str) -> bool:
    """Whether a hint was never given on this account; from now on it was. False where that cannot be recorded."""
    marker = config_path().parent / f"{hint}.seen"
    try:
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch(exist_ok=False)
    except OSError:
        return False
    return True

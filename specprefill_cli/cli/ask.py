"""`specprefill ask`, `passages` and `plan`: a question about documents, answered or read by the draft alone."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from specprefill_cli.cli.console import Notes, console, print_json
from specprefill_cli.cli.loading import new_request, open_engine, open_ready_session, read_inputs, write_page
from specprefill_cli.cli.options import OF_TARGET, Documents, Html, Json, NoServer, Question, Quiet, with_settings
from specprefill_cli.documents.document import Collection
from specprefill_cli.engine.request import ANSWER, PASSAGES, Done, Event, Piece, Provisional, Request
from specprefill_cli.errors import INTERRUPTED, SpecprefillError, UsageError
from specprefill_cli.record import PLANNED_MODE, Comparison, ModeAnswer, Record
from specprefill_cli.reporting.text import printable
from specprefill_cli.settings import OUTPUT, Settings


@with_settings("documents", "models", "prefill", "decoding", "output")
def ask(
    documents: Documents = None,
    question: Question = None,
    *,
    settings: Settings,
    json: Json = False,
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

      specprefill ask report.pdf "Who signed?" --target http://host:8000/v1#model

      curl -s https://example.org | specprefill ask - "What is it about?"
    """
    request = new_request("ask", documents, question, settings, with_cells=html is not None)
    notes = Notes(quiet)
    # A server confirms no answers, and a page needs the documents here.
    events, collection = send(request, notes, no_server or settings.confirm or html is not None, html)
    with notes.progress("prefill"):
        next(events)
    # Text written to a pipe cannot be corrected afterwards.
    at_once = not json and (sys.stdout.isatty() or not settings.confirm)
    done = write_answer(events, at_once)
    if isinstance(done, Provisional):
        with notes.progress("full prefill confirms the answer"):
            done = next(event for event in events if isinstance(event, Done))
    if not (at_once or json):
        print(printable(done.result.answer), flush=True)
    show_figures(done.result, at_once, json, verbose, notes)
    if html is not None and collection is not None:
        answer = ModeAnswer(mode=settings.mode, answer=done.result, cells=done.cells)
        write_page(html, collection, Comparison(question=request.question, answers=[answer]), settings)
    if done.result.stopped == "interrupt":
        raise typer.Exit(INTERRUPTED)


def send(
    request: Request, notes: Notes, no_server: bool, html: Path | None = None
) -> tuple[Iterator[Event], Collection | None]:
    """Send a request to the running server, or to an engine opened here; return its events, and the documents if read here."""
    settings, documents = request.settings, request.documents
    assert isinstance(documents, tuple), "they are named"
    if not no_server:
        from specprefill_cli.serving.control import server_for

        if server := server_for(settings, notes.line):
            return server.ask(request), None
    collection = read_inputs(documents, html, settings, notes)
    if request.task == ANSWER:
        session = open_ready_session([settings], notes, single=True)
    else:
        session = open_ready_session([settings.varied(mode=PLANNED_MODE)], notes, target_weights=False)
    return open_engine(session, settings).ask(replace(request, documents=collection)), collection


def show_figures(answer: Record, at_once: bool, json: bool, verbose: bool, notes: Notes) -> None:
    """Print the answer as JSON, or show evidence and figures; at_once: it was written before its confirmation."""
    if json:
        print_json(answer.to_json())
        return
    from specprefill_cli.reporting.table import answer_table, confirmation_text, short_table
    from specprefill_cli.reporting.text import evidence_view

    confirmation = confirmation_text(answer)
    if confirmation is not None:
        notes.line(confirmation)
    if at_once and answer.confirmed is False:
        print(f"corrected: {printable(answer.answer)}", flush=True)
    notes.show(evidence_view(answer))
    notes.show(answer_table(answer) if verbose else short_table(answer))


def write_answer(events: Iterator[Event], at_once: bool) -> Provisional | Done:
    """Write the pieces of an answer as they come, if `at_once`; return the event that ends it."""
    text = ""
    try:
        for event in events:
            if not isinstance(event, Piece):
                break
            text += event.text
            if at_once:
                print(printable(event.text), end="", flush=True)
    except SpecprefillError:
        # Let the error begin a new line.
        if at_once and text:
            print(flush=True)
        raise
    if at_once:
        print(flush=True)
    assert isinstance(event, Provisional | Done), "an answer ends so, or with an error"
    return event


@with_settings("documents", "models", "prefill", without=(*OF_TARGET, "positions"))
def passages(
    documents: Documents = None,
    question: Question = None,
    top: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Print the best N passages of one to four sentences, instead of a share (--keep).",
            show_default="none",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    *,
    settings: Settings,
    given: Mapping[str, Any],
    json: Json = False,
    quiet: Quiet = False,
    no_server: NoServer = False,
) -> None:
    """Print the passages that matter for a question, in document order. Run only the draft.

    Examples:
      specprefill passages report.pdf "What is the fee?" --top 3

      specprefill passages docs/ "Who signed?" --json | jq -r '.passages[].text'
    """
    if top is not None and "keep" in given:
        raise UsageError(f"--top {top}: replaces the share of --keep; leave out one of them")
    request = new_request("passages", documents, question, settings, task=PASSAGES, top=top)
    notes = Notes(quiet)
    events, _ = send(request, notes, no_server)
    with notes.progress("reading the documents with the draft"):
        retrieval = next(event.result for event in events if isinstance(event, Done))
    from specprefill_cli.reporting.text import by_page

    for warning in retrieval.warnings:
        notes.warn(warning)
    if json:
        print_json(asdict(retrieval))
        return
    pages = by_page(retrieval.passages)
    texts = [f"[{place}]\n" + "\n\n".join(" ".join(part.text.split()) for part in parts) for place, parts in pages]
    print(printable("\n\n".join(texts)), flush=True)


@with_settings("documents", "models", "prefill", "max_new_tokens", without=OF_TARGET)
def plan(
    documents: Documents = None,
    question: Question = None,
    *,
    settings: Settings,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show how much `select` would keep, and on which pages, and estimate the time. Load no weights of the target.

    The table estimates the time to first token for several keep ratios from counted operations. --json has every chunk.

    Examples:
      specprefill plan report.pdf "What is the notice period?" --keep 0.2

      specprefill plan report.pdf "Who?" --json | jq '.chunks[0].importance'
    """
    request, notes = new_request("plan", documents, question, settings), Notes(quiet)
    collection = read_inputs(documents or (), None, settings, notes)
    session = open_ready_session([settings.varied(mode=PLANNED_MODE)], notes, target_weights=False)
    from specprefill_cli.answering.tasks import dry_run
    from specprefill_cli.prefill.shortlist import shortlist

    with notes.progress("reading the documents with the draft"):
        collection = shortlist(collection, request.question, settings)
        run = dry_run(session, collection, request.question, settings)
    if json:
        print_json(asdict(run))
        return
    from specprefill_cli.reporting.table import plan_view

    console(sys.stdout).print(plan_view(run))

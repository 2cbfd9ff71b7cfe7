"""`specprefill ask`: one question about documents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from specprefill_cli.cli.arguments import checked_arguments
from specprefill_cli.cli.console import Notes, close_broken_pipe, print_json
from specprefill_cli.cli.hints import first_time
from specprefill_cli.cli.inputs import read_inputs, write_page
from specprefill_cli.cli.loading import open_answering
from specprefill_cli.cli.options import OUTPUT, Documents, Given, Html, Json, Question, Quiet, with_settings
from specprefill_cli.errors import INTERRUPTED
from specprefill_cli.reporting.safe import printable
from specprefill_cli.settings import Settings


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
            "--verbose", "-v", help="Show all figures, not the most important ones alone.", rich_help_panel=OUTPUT
        ),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Answer a question about documents: the answer on standard output, passages and figures on standard error.

    Examples:
      specprefill ask report.pdf "What is the notice period?"

      specprefill ask docs/ notes.md "Who signed the lease?" --keep 0.2 --json

      specprefill ask report.pdf "What is the fee?" --html answer.html

      curl -s https://example.org | specprefill ask - "What is it about?"
    """
    names, question = checked_arguments("ask", documents, question)
    notes = Notes(quiet)
    collection = read_inputs(names, html, settings, notes)
    size = f"{len(collection.text):,} characters"
    with notes.progress(f"loading the models; the documents have {size}"):
        session = open_answering(context, settings, given, notes, with_cells=html is not None)
    with notes.progress(f"prefill of {size}"):
        stream = session.ask(collection, question, settings)
    pieces = iter(stream)
    try:
        write_answer(pieces, streaming=not (json or no_stream), silent=json)
    except BrokenPipeError:
        if html is None:
            raise
        # Its reader left early (`| head -1`), but the answer goes to the page too.
        close_broken_pipe()
        list(pieces)
    answer = stream.result()
    if html:
        from specprefill_cli.reporting.html import answer_result

        write_page(html, question, collection, [answer_result(answer, stream.cells)])
    if json:
        from specprefill_cli.reporting.jsonl import answer_record

        print_json(answer_record(answer))
    else:
        from specprefill_cli.reporting.evidence import BETTER_PAIR_HINT, evidence, needs_better_pair
        from specprefill_cli.reporting.table import answer_table, short_table

        notes.show(evidence(answer))
        if not quiet and needs_better_pair(answer) and first_time("better-pair"):
            notes.tell(BETTER_PAIR_HINT)
        notes.show(answer_table(answer) if verbose else short_table(answer))
    if answer.stopped == "interrupt":
        raise typer.Exit(INTERRUPTED)


def write_answer(pieces: Iterator[str], streaming: bool, silent: bool) -> None:
    """Write the answer to standard output, in pieces or at once."""
    if streaming:
        for piece in pieces:
            print(printable(piece), end="", flush=True)
    text = "".join(pieces).strip()
    if not silent:
        print(printable(text), flush=True)

"""`specprefill ask`: one question about documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from specprefill_cli.cli.console import Notes, print_json
from specprefill_cli.cli.inputs import check_question, read_inputs, write_page
from specprefill_cli.cli.loading import open_ready_session
from specprefill_cli.cli.options import OUTPUT, Documents, Given, Html, Json, Question, Quiet, with_settings
from specprefill_cli.errors import INTERRUPTED
from specprefill_cli.reporting.safe import printable
from specprefill_cli.settings import Settings

if TYPE_CHECKING:
    from specprefill_cli.answering.stream import AnswerStream


@with_settings("models", "prefill", "decoding")
def ask(
    context: typer.Context,
    documents: Documents,
    question: Question,
    *,
    settings: Settings,
    given: Given,
    json: Json = False,
    no_stream: Annotated[
        bool, typer.Option("--no-stream", help="Print the answer when it is complete.", rich_help_panel=OUTPUT)
    ] = False,
    html: Html = None,
    quiet: Quiet = False,
) -> None:
    """Answer a question about documents: the answer on standard output, a table of figures on standard error.

    Examples:
      specprefill ask report.pdf "What is the notice period?"

      specprefill ask docs/ notes.md "Who signed the lease?" --keep 0.2 --json

      specprefill ask report.pdf "What is the fee?" --html answer.html

      curl -s https://example.org | specprefill ask - "What is it about?" --mode full
    """
    check_question(question)
    notes = Notes(quiet)
    collection = read_inputs(documents, html, notes)
    size = f"{len(collection.text):,} characters"
    with notes.progress(f"loading the models; the documents have {size}"):
        session = open_ready_session(context, [settings], given, notes)
    with notes.progress(f"prefill of {size}"):
        stream = session.ask(collection, question, settings)
    reader_left = write_answer(
        stream, streaming=not (json or no_stream), silent=json, despite_closed_pipe=html is not None
    )
    answer = stream.result()
    if html:
        from specprefill_cli.answering.cells import stream_cells
        from specprefill_cli.reporting.html import answer_result

        write_page(html, question, collection, [answer_result(answer, stream_cells(stream))])
    if reader_left is not None:
        raise reader_left
    if json:
        from specprefill_cli.reporting.jsonl import answer_record

        print_json(answer_record(answer))
    else:
        from specprefill_cli.reporting.table import answer_table

        notes.show(answer_table(answer))
    if answer.stopped == "interrupt":
        raise typer.Exit(INTERRUPTED)


def write_answer(
    stream: AnswerStream, streaming: bool, silent: bool, despite_closed_pipe: bool
) -> BrokenPipeError | None:
    """Write the answer to standard output, in pieces or at once; the error where its reader left early (`| head -1`).

    despite_closed_pipe: decode the rest of the answer all the same, because it goes to a file too
    """
    pieces = []
    reader_left = None
    for piece in stream:
        pieces.append(piece)
        if streaming and reader_left is None:
            reader_left = try_print(printable(piece), "")
            if reader_left is not None and not despite_closed_pipe:
                return reader_left
    if silent or reader_left is not None:
        return reader_left
    return try_print("" if streaming else printable("".join(pieces).strip()), "\n")


def try_print(text: str, end: str) -> BrokenPipeError | None:
    """Print at once; the error where nobody reads any more."""
    try:
        print(text, end=end, flush=True)
    except BrokenPipeError as error:
        return error
    return None

"""`specprefill ask`: one question about documents."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from specprefill_cli.cli import options
from specprefill_cli.cli.console import Notes, print_json
from specprefill_cli.errors import INTERRUPTED

if TYPE_CHECKING:
    from specprefill_cli.answering.stream import AnswerStream


def ask(
    context: typer.Context,
    documents: Annotated[
        list[str], typer.Argument(help="Files, folders or globs; - is standard input.", show_default=False)
    ],
    question: Annotated[str, typer.Argument(help="The question, in quotes.", show_default=False)],
    mode: options.Mode = None,
    keep: options.Keep = None,
    scorer: options.Scorer = None,
    recompute: options.Recompute = None,
    accept_risk: options.AcceptRisk = None,
    exact_layers: options.ExactLayers = None,
    look_ahead: options.LookAhead = None,
    chunk_size: options.ChunkSize = None,
    draft_window: options.DraftWindow = None,
    prefill_chunk: options.PrefillChunk = None,
    prompt: options.Prompt = None,
    pair: options.Pair = None,
    draft: options.Draft = None,
    target: options.Target = None,
    devices: options.Devices = None,
    tensor_parallel: options.TensorParallel = None,
    dtype: options.Dtype = None,
    quantization: options.Quantization = None,
    offline: options.Offline = None,
    max_new_tokens: options.MaxNewTokens = None,
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    seed: options.Seed = None,
    speculate: options.Speculate = None,
    proposer: options.Proposer = None,
    json: options.Json = False,
    no_stream: Annotated[
        bool, typer.Option("--no-stream", help="Print the answer when it is complete.", rich_help_panel=options.OUTPUT)
    ] = False,
    html: options.Html = None,
    quiet: options.Quiet = False,
) -> None:
    """Answer a question about documents: the answer on standard output, a table of figures on standard error.

    Examples:
      specprefill ask report.pdf "What is the notice period?"

      specprefill ask docs/ notes.md "Who signed the lease?" --keep 0.2 --json

      specprefill ask report.pdf "What is the fee?" --html answer.html

      curl -s https://example.org | specprefill ask - "What is it about?" --mode full
    """
    flags = locals()
    settings = options.settings_from(flags)
    options.check_question(question)
    options.check_html(html)
    notes = Notes(quiet)
    from specprefill_cli.documents import read_collection

    with notes.progress("reading documents"):
        collection = read_collection(documents)
    options.check_no_document(html, collection)
    from specprefill_cli.models.tokenizers import count_tokens

    size = count_tokens(collection.text)
    with notes.progress(f"loading the models; the documents have about {size:,} tokens"):
        from specprefill_cli.answering.session import open_session
        from specprefill_cli.cli.idle_options import without_effect

        session = open_session(settings)
        session.warm_up(settings)
    for idle in without_effect(flags, [session.with_scorer(settings)]):
        notes.warn(idle)
    session.startup_seconds = time.perf_counter() - context.obj["started"]
    with notes.progress(f"prefill of about {size:,} tokens"):
        stream = session.ask(collection, question, settings)
    reader_left = write_answer(stream, streaming=not (json or no_stream), silent=json, to_the_end=html is not None)
    answer = stream.result()
    if html:
        from specprefill_cli.answering.cells import stream_cells
        from specprefill_cli.reporting.html import answer_result

        options.write_html(html, question, collection, [answer_result(answer, stream_cells(stream))])
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


def write_answer(stream: AnswerStream, streaming: bool, silent: bool, to_the_end: bool) -> BrokenPipeError | None:
    """Write the answer's text to standard output, piece by piece or at once; the error where its reader left early.

    to_the_end: decode what such a reader (`| head -1`) did not wait for, because the answer goes to a file too
    """
    from specprefill_cli.reporting.safe import printable

    pieces = []
    reader_left = None
    for piece in stream:
        pieces.append(piece)
        if streaming and reader_left is None:
            reader_left = printed(printable(piece), "")
            if reader_left is not None and not to_the_end:
                return reader_left
    if silent or reader_left is not None:
        return reader_left
    return printed("" if streaming else printable("".join(pieces).strip()), "\n")


def printed(text: str, end: str) -> BrokenPipeError | None:
    """Print at once; the error where nobody reads any more."""
    try:
        print(text, end=end, flush=True)
    except BrokenPipeError as error:
        return error
    return None

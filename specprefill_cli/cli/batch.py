"""`specprefill batch`: many questions, one JSON object a row."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from specprefill_cli.cli import options
from specprefill_cli.cli.console import Notes
from specprefill_cli.errors import INTERRUPTED, SOME_FAILED, SpecprefillError, UsageError

if TYPE_CHECKING:
    from specprefill_cli.batching.answerer import SessionAnswerer
    from specprefill_cli.batching.loop import Count
    from specprefill_cli.settings import Settings


def batch(
    context: typer.Context,
    questions: Annotated[
        str, typer.Argument(metavar="[FILE|-]", help="JSONL, or one question a line; - is standard input.")
    ] = "-",
    document: Annotated[
        list[str] | None,
        typer.Option(help="What rows without documents ask about: a file, folder or glob; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write rows to this file.", rich_help_panel=options.OUTPUT, show_default=False)
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on behind the rows that --out holds.", rich_help_panel=options.OUTPUT),
    ] = False,
    cache_dir: Annotated[
        Path | None,
        typer.Option(
            help="Keep the draft's cache of documents in this folder.",
            rich_help_panel=options.PREFILL,
            show_default=False,
        ),
    ] = None,
    cache_limit: Annotated[
        float,
        typer.Option(help="Size limit of --cache-dir, in GiB.", min=0.001, max=1e6, rich_help_panel=options.PREFILL),
    ] = 8.0,
    mode: options.Mode = None,
    keep: options.Keep = None,
    scorer: options.Scorer = None,
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
    quiet: options.Quiet = False,
) -> None:
    """Answer many questions: a row in, a JSON object out, in order and as they arrive.

    A row is a JSON object with question, and optionally id, documents, mode, keep and other options of decoding and
    prefill; or a plain question. Questions about the same documents share their text and the draft's cache of them.
    A row that fails becomes an error row; the exit code is then 3.

    Examples:
      specprefill batch questions.jsonl --out answers.jsonl --resume

      cat questions.txt | specprefill batch - --document report.pdf --keep 0.2 | jq -r .answer
    """
    settings = options.settings_from(locals())
    names = tuple(document or ())
    if out == Path("-"):
        out = None
    if resume and out is None:
        raise UsageError("--resume needs --out: it goes on with the rows of that file")
    if questions == "-" and "-" in names:
        raise UsageError("standard input cannot be both the questions and a document; give one of them as a file")
    if out is not None and out.exists() and questions != "-" and Path(questions).exists() and out.samefile(questions):
        raise UsageError(f"--out {out}: these are the questions; give another name")
    notes = Notes(quiet)
    from specprefill_cli.batching.interrupts import Interrupts
    from specprefill_cli.batching.loop import NOTHING_FINISHED, run_batch
    from specprefill_cli.batching.output import RowWriter, finished_rows, open_output

    interrupts = Interrupts()
    with ExitStack() as stack:
        source = open_questions(questions, stack)
        sink = sys.stdout.buffer
        if out is not None:
            sink = stack.enter_context(open_output(out, resume))
        stack.enter_context(interrupts.caught())
        try:
            answer = answerer(settings, names, cache_dir, cache_limit, notes, context.obj["started"])
            started = time.perf_counter()
            # Rows that are shown as they come would be written into the line of progress.
            progress = notes if out is not None else Notes(quiet=True)
            update = stack.enter_context(progress.progress("waiting for the first row"))
            count = run_batch(
                lines(source),
                bool(names),
                answer,
                RowWriter(sink),
                finished_rows(out) if out is not None and resume else NOTHING_FINISHED,
                lambda count: update(progress_text(count, started)),
                interrupts.held,
            )
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
    notes.show(progress_text(count, started))
    if count.failed_before:
        notes.warn(
            f"{count.failed_before:,} of the failed rows were written by an earlier run and are not asked again; "
            "give their questions as a new input"
        )
    if count.failed:
        raise typer.Exit(SOME_FAILED)


def open_questions(name: str, stack: ExitStack) -> BinaryIO:
    if name == "-":
        if sys.stdin is None:
            raise UsageError("-: standard input is closed; pipe the questions into it, or give a file of them")
        return sys.stdin.buffer
    try:
        return stack.enter_context(open(name, "rb"))
    except OSError as error:
        raise SpecprefillError(f"{name}: cannot be read ({error.strerror}); give a file of questions, or -") from error


def lines(stream: BinaryIO) -> Iterator[bytes]:
    """Each line as soon as it is there: a slow writer keeps no row back that it has written."""
    return iter(stream.readline, b"")


def answerer(
    settings: Settings,
    names: tuple[str, ...],
    cache_dir: Path | None,
    cache_limit: float,
    notes: Notes,
    program_started: float,
) -> SessionAnswerer:
    """Read the batch's documents, load the models, and warm them up."""
    from specprefill_cli.answering.session import check_names, open_session
    from specprefill_cli.batching.answerer import SessionAnswerer, Shelf
    from specprefill_cli.documents import read_collection
    from specprefill_cli.prefill.disk_cache import DiskCache
    from specprefill_cli.prefill.prefix_cache import PrefixCache, DocumentCache

    check_names(settings)

    own = None
    if names:
        with notes.progress("reading documents"):
            own = read_collection(names)
    store = DiskCache(cache_dir, int(cache_limit * 2**30), notes.warn) if cache_dir is not None else None
    with notes.progress("loading the models"):
        session = open_session(settings)
        session.shared = DocumentCache(draft=PrefixCache(store))
        session.warm_up(settings)
    session.startup_seconds = time.perf_counter() - program_started
    return SessionAnswerer(session, settings, Shelf(read_collection), own)


def progress_text(count: Count, started: float) -> str:
    elapsed = time.perf_counter() - started
    parts = [f"{count.answered:,} rows in {elapsed:,.1f} s"]
    if count.skipped:
        parts.append(f"{count.skipped:,} were there already")
    if count.failed:
        parts.append(f"{count.failed:,} failed")
    return ", ".join(parts)

"""`specprefill batch`: many questions, one JSON object a row."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from specprefill_cli.cli.choices import concurrency_of
from specprefill_cli.cli.console import Notes
from specprefill_cli.cli.options import OUTPUT, Quiet, with_settings
from specprefill_cli.cli.row_sessions import SessionOpener, disk_cache, in_this_process, open_answerer, read_own
from specprefill_cli.cli.workers import PANEL, Ray, Workers, check_workers, open_executor
from specprefill_cli.errors import SOME_FAILED, Interrupted, SpecprefillError, UsageError
from specprefill_cli.files import same_file
from specprefill_cli.settings import AUTO, CACHE, Settings

if TYPE_CHECKING:
    from specprefill_cli.batching.loop import Count
    from specprefill_cli.batching.output import Finished


@with_settings("documents", "models", "prefill", "decoding", "cache", "output", served=True)
def batch(
    context: typer.Context,
    questions: Annotated[
        str, typer.Argument(metavar="[FILE|-]", help="JSONL, or one question a line; - is standard input.")
    ] = "-",
    document: Annotated[
        list[str] | None,
        typer.Option(help="What rows without documents ask about: a file, folder or glob; may be repeated."),
    ] = None,
    workers: Workers = None,
    ray: Ray = None,
    concurrency: Annotated[
        str,
        typer.Option(
            help="Rows that a session answers at once: a number, or auto.", rich_help_panel=PANEL, metavar="N|auto"
        ),
    ] = AUTO,
    out: Annotated[
        Path | None, typer.Option(help="Write rows to this file.", rich_help_panel=OUTPUT, show_default=False)
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Skip the rows that --out holds already.", rich_help_panel=OUTPUT)
    ] = False,
    retry_failed: Annotated[
        bool,
        typer.Option("--retry-failed", help="As --resume, but ask the rows that failed again.", rich_help_panel=OUTPUT),
    ] = False,
    unordered: Annotated[
        bool,
        typer.Option("--unordered", help="Write rows as they are answered, not in order.", rich_help_panel=OUTPUT),
    ] = False,
    cache_dir: Annotated[
        Path | None,
        typer.Option(
            help="Keep the draft's KV of documents in this folder.", rich_help_panel=CACHE, show_default=False
        ),
    ] = None,
    cache_limit: Annotated[
        float, typer.Option(help="Size limit of --cache-dir, in GiB.", min=0.001, max=1e6, rich_help_panel=CACHE)
    ] = 8.0,
    *,
    settings: Settings,
    quiet: Quiet = False,
) -> None:
    """Answer many questions, several at a time: a row in, a JSON object out, in order and as they arrive.

    A row is a JSON object with question, and optionally id, documents, mode, keep and other options of decoding and
    prefill; or a plain question. Questions about the same documents share their text and the draft's cache of them.
    A row that fails becomes an error row; the exit code is then 3.

    Examples:
      specprefill batch questions.jsonl --out answers.jsonl --resume

      cat questions.txt | specprefill batch - --document report.pdf --keep 0.2 | jq -r .answer
    """
    names = tuple(document or ())
    if out == Path("-"):
        out = None
    resume |= retry_failed
    check_streams(questions, names, out, resume)
    check_workers(settings, workers, ray)
    if context.obj["served"] is not None:
        from specprefill_cli.serving.command import RunAlone

        if workers or ray:
            raise RunAlone("--workers and --ray start processes of their own", quiet)
        workers = 0
    notes = Notes(quiet)
    at_once = rows_at_once(concurrency, settings, ray, notes)
    from specprefill_cli.batching.arrivals import source_of
    from specprefill_cli.batching.loop import Count, run_rows
    from specprefill_cli.batching.output import Finished, RowWriter, open_output
    from specprefill_cli.batching.rows import keys_in

    count, finished = Count(), Finished()
    with ExitStack() as stack:
        source = open_questions(questions, stack)
        keys = keys_in(source, bool(names))
        sink: BinaryIO = sys.stdout.buffer
        if out is not None:
            sink, finished = stack.enter_context(open_output(out, resume, retry_failed))
            check_same_input(keys, finished, out)
        before = finished.total()
        try:
            own = read_own(settings, names, notes)
            opener = SessionOpener(settings, own, cache_dir, cache_limit, os.getcwd(), at_once)
            executor = open_executor(opener, settings, workers, ray, (source, bool(names)), notes, at_once)
            if executor is None:
                answer = open_answerer(
                    context, settings, own, disk_cache(cache_dir, cache_limit, notes), notes, at_once
                )
                executor = in_this_process(answer)
            stack.callback(executor.close)
            started = time.perf_counter()
            # A progress line on the terminal would run into rows printed there.
            total = len(keys) if keys is not None else None
            bar = notes.bar("rows", total) if out is not None else nullcontext(lambda _done, _text: None)
            update = stack.enter_context(bar)
            run_rows(
                source_of(source),
                bool(names),
                executor,
                RowWriter(sink),
                finished,
                count,
                lambda: update(count.answered + count.skipped, progress_text(count, started)),
                notes.tell,
                ordered=not unordered,
            )
        except KeyboardInterrupt:
            of_total = f" of {len(keys):,}" if keys is not None else ""
            remedy = "run the same command with --resume to go on" if out else "--out keeps rows for --resume"
            raise Interrupted(f"interrupted after {before + count.answered:,}{of_total} rows; {remedy}") from None
    report(count, finished.total(), started, notes)


def check_streams(questions: str, names: tuple[str, ...], out: Path | None, resume: bool) -> None:
    """Raises UsageError for inputs and an output that exclude each other."""
    if resume and out is None:
        raise UsageError("--resume needs --out: it skips the rows that this file holds")
    if questions == "-" and "-" in names:
        raise UsageError("standard input cannot be both the questions and a document; give one of them as a file")
    if out is not None and questions != "-" and same_file(out, Path(questions)):
        raise UsageError(f"--out {out}: these are the questions; give another name")


def check_same_input(keys: Sequence[str | int] | None, finished: Finished, out: Path) -> None:
    """Raises UsageError where the output has rows and none of them is in the input, as far as that can be known."""
    if keys is not None and finished and not any((key, failed) in finished for key in keys for failed in (True, False)):
        raise UsageError(f"--resume: no row of {out} is in the input; give the same input as before, or another --out")


def open_questions(name: str, stack: ExitStack) -> BinaryIO:
    """The input, `-` being standard input. Raises SpecprefillError where it cannot be read."""
    if name == "-":
        if sys.stdin is None:
            raise UsageError("-: standard input is closed; pipe the questions into it, or give a file of them")
        return sys.stdin.buffer
    try:
        return stack.enter_context(open(name, "rb"))
    except OSError as error:
        raise SpecprefillError(f"{name}: cannot be read ({error.strerror}); give a file of questions, or -") from error


def rows_at_once(text: str, settings: Settings, ray: str | None, notes: Notes) -> int | None:
    """The rows that a session answers at once, None for as many as pay. Raises UsageError for a wrong value."""
    number = concurrency_of(text, "--concurrency")
    if settings.tensor_parallel == 1 and ray is None:
        return number
    if number is not None and number > 1:
        which = "--tensor-parallel" if ray is None else "--ray"
        notes.warn(f"--concurrency {number}: with {which}, each session answers one row at a time")
    return 1


def report(count: Count, unknown: int, started: float, notes: Notes) -> None:
    """Show the final count, and how many rows of the output are unknown to the input; raises Exit where rows failed."""
    notes.show(progress_text(count, started))
    if unknown:
        notes.warn(f"rows of the output that are not in the input: {unknown:,}")
    if count.failed_before:
        notes.warn(
            f"{count.failed_before:,} of the failed rows were written by an earlier run and are not asked again; "
            "--retry-failed does that"
        )
    if count.failed:
        raise typer.Exit(SOME_FAILED)


def progress_text(count: Count, started: float) -> str:
    """Counts so far, and the time since the first row was read."""
    elapsed = time.perf_counter() - started
    rate = f" ({count.answered / elapsed:,.1f} a second)" if count.answered and elapsed else ""
    parts = [f"{count.answered:,} rows in {elapsed:,.1f} s{rate}"]
    if count.skipped:
        parts.append(f"{count.skipped:,} were there already")
    if count.failed:
        parts.append(f"{count.failed:,} failed")
    return ", ".join(parts)

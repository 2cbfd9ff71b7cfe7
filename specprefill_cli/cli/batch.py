"""`specprefill batch`: many questions, a JSON object for each row."""

import re
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from specprefill_cli.cli.console import Notes
from specprefill_cli.cli.loading import EngineOpener, document_reader
from specprefill_cli.cli.options import OUTPUT, NoServer, Quiet, with_settings, without_confirmation
from specprefill_cli.distributed.launch import in_run
from specprefill_cli.errors import SOME_FAILED, Interrupted, UsageError
from specprefill_cli.files import same_file
from specprefill_cli.models.sources.refs import is_endpoint
from specprefill_cli.settings import Settings

if TYPE_CHECKING:
    from specprefill_cli.batching import Count

# Ray's address of a cluster: `auto` for the cluster of this machine, or host and port.
ADDRESS = re.compile(r"auto|[^\s/]+:\d+")
worker_option, output_option = (partial(typer.Option, rich_help_panel=panel) for panel in ("Workers", OUTPUT))


@with_settings("documents", "models", "prefill", "decoding", "cache", "output", without=("confirm",))
def batch(
    questions: Annotated[
        typer.FileBinaryRead,
        typer.Argument(metavar="FILE|-", help="JSONL, or one question a line; - is standard input."),
    ] = "-",  # type: ignore[assignment]
    document: Annotated[
        list[str] | None, typer.Option(help="File, folder or glob for rows without documents; may be repeated.")
    ] = None,
    workers: Annotated[
        int | None,
        worker_option(
            help="Answer rows in this many Ray actors, each with its own models.",
            min=1,
            max=1024,
            show_default="none: this process; with --ray: as many as fit the cluster",
        ),
    ] = None,
    ray: Annotated[
        str | None,
        worker_option(help="Answer on the Ray cluster at this address: auto, or HOST:PORT.", show_default="none"),
    ] = None,
    concurrency: Annotated[
        int | None, worker_option(help="Rows to answer at once.", min=1, show_default="auto")
    ] = None,
    out: Annotated[Path | None, output_option(help="Write rows to this file.", show_default=False)] = None,
    resume: Annotated[bool, output_option("--resume", help="Skip the rows that --out holds already.")] = False,
    retry_failed: Annotated[
        bool, output_option("--retry-failed", help="As --resume, but ask failed rows again.")
    ] = False,
    *,
    settings: Settings,
    quiet: Quiet = False,
    no_server: NoServer = False,
) -> None:
    """Answer many questions, several at a time. Each row of the input becomes one JSON object, in the same order.

    A row is a plain question, or a JSON object with question and optionally id, documents, mode, keep and other settings
    of prefill and decoding. Questions about the same documents share the draft's KV cache. A row that fails becomes an
    error row, and the exit code is 3.

    Examples:
      specprefill batch questions.jsonl --out answers.jsonl --resume

      cat questions.txt | specprefill batch - --document report.pdf --keep 0.2 | jq -r .answer
    """
    documents = tuple(document or ())
    if out == Path("-"):
        out = None
    resume |= retry_failed
    check_streams(questions, documents, out, resume)
    check_workers(settings, workers, ray)
    notes = Notes(quiet)
    settings = without_confirmation(settings, notes)
    # Other ranks get a single pass at a time.
    at_once = concurrency if settings.tensor_parallel == 1 else 1
    from specprefill_cli.batching import Batch, Count
    from specprefill_cli.batching.output import Finished, RowWriter, open_output
    from specprefill_cli.batching.rows import hashes_in, lines_of

    with ExitStack() as stack:
        hashes = hashes_in(questions, documents)
        sink: BinaryIO = sys.stdout.buffer
        finished, count = Finished(), Count()
        if out is not None:
            sink, finished = stack.enter_context(open_output(out, resume, retry_failed, hashes))
        finished_before, of_total = finished.total(), "" if hashes is None else f" of {len(hashes):,}"
        try:
            with notes.progress("reading documents"):
                collection = document_reader(settings)(documents) if documents else None
            opener = EngineOpener(settings, documents, collection, at_once)
            if workers is not None or ray is not None:
                engine = opener.open_workers(workers, ray, notes)
            else:
                engine = opener.open(notes, no_server)
            stack.callback(engine.close)
            writer = RowWriter(sink)
            stack.callback(writer.sync)
            rows = Batch(
                engine=engine, settings=settings, documents=documents, write=writer, finished=finished, count=count
            )
            started = time.perf_counter()
            # Show progress only with --out: on a terminal it would run into the rows.
            if out is not None:
                update = stack.enter_context(notes.progress("waiting for the first of the rows"))
                rows.step = lambda: update(
                    f"{count.answered + count.skipped:,}{of_total} rows: {progress_text(count, started)}"
                )
            rows.run(lines_of(questions))
        except KeyboardInterrupt:
            remedy = "run the same command with --resume to go on" if out else "--out keeps rows for --resume"
            reached = f"{finished_before + count.answered:,}{of_total} rows"
            raise Interrupted(f"interrupted after {reached}; {remedy}") from None
    report(count, finished.total(), started, notes, out)


def check_streams(questions: BinaryIO, documents: tuple[str, ...], out: Path | None, resume: bool) -> None:
    """Raise UsageError for inputs and an output that exclude each other."""
    if resume and out is None:
        raise UsageError("--resume and --retry-failed need --out: they skip rows that this file holds")
    is_standard_input = questions is sys.stdin.buffer
    if is_standard_input and "-" in documents:
        raise UsageError("standard input cannot be both the questions and a document; give one of them as a file")
    if out is not None and not is_standard_input and same_file(out, Path(questions.name)):
        raise UsageError(f"--out {out}: this is the file of questions; give another name")


def check_workers(settings: Settings, workers: int | None, ray: str | None) -> None:
    """Raise UsageError for options that exclude each other."""
    if (workers or ray) and in_run():
        raise UsageError("--workers and --ray start processes, and torchrun did already; leave out one of them")
    if (workers or ray) and is_endpoint(settings.target):
        raise UsageError("--workers and --ray start processes, and one is enough for an endpoint; give --concurrency N")
    if ray is not None and not ADDRESS.fullmatch(ray):
        raise UsageError(f"--ray {ray}: give auto on a machine of the cluster, or HOST:PORT")


def report(count: "Count", unmatched: int, started: float, notes: Notes, out: Path | None) -> None:
    """Show the final count, and how many rows of the output are not in the input. Raises Exit if rows failed."""
    notes.show(progress_text(count, started))
    if unmatched:
        notes.warn(f"rows of the output that are not in the input: {unmatched:,}")
    if count.failed and out is not None:
        notes.line("--retry-failed, with the same --out, asks the failed rows again")
    if count.failed:
        raise typer.Exit(SOME_FAILED)


def progress_text(count: "Count", started: float) -> str:
    """The counts so far, and the time since the first row was read."""
    elapsed = time.perf_counter() - started
    rate = f" ({count.answered / elapsed:,.1f} a second)" if count.answered and elapsed else ""
    skipped = f", {count.skipped:,} were there already" if count.skipped else ""
    failed = f", {count.failed:,} failed" if count.failed else ""
    return f"{count.answered:,} rows in {elapsed:,.1f} s{rate}{skipped}{failed}"

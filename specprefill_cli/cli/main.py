"""Entry point: the commands, and errors as one line with the right exit code."""

from __future__ import annotations

import io
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup

from specprefill_cli import __version__
from specprefill_cli.cli import ask, batch, compare, config, doctor, pairs, plan
from specprefill_cli.cli.console import close_broken_pipe
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.lab.commands import bench, bench_peer, calibrate, evaluate, study

# As early as it gets: start-up time is counted from here.
STARTED = time.perf_counter()


class PipeGroup(TyperGroup):
    """Commands whose reader may leave early: `specprefill ... | head` is no error."""

    def invoke(self, ctx: typer.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            close_broken_pipe()
            raise typer.Exit(0) from None


app = typer.Typer(
    name="specprefill",
    cls=PipeGroup,
    help="Answers questions about long documents. A small draft model finds what matters; the large target model reads "
    "only that, so that the first token comes several times sooner.",
    epilog='Example: specprefill ask report.pdf "What is the notice period?"',
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("ask")(ask.ask)
app.command("batch")(batch.batch)
app.command("compare")(compare.compare)
app.command("plan")(plan.plan)
bench.app.command("peer")(bench_peer.peer)
app.add_typer(bench.app, name="bench")
app.command("calibrate")(calibrate.calibrate)
app.command("evaluate")(evaluate.evaluate)
app.command("study")(study.study)
app.add_typer(pairs.app, name="pairs")
app.command("doctor")(doctor.doctor)
app.add_typer(config.app, name="config")


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"specprefill {__version__}")
        raise typer.Exit


@app.callback()
def common(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback when something fails.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    # main() looks for --debug itself: it must know before the command line is parsed.
    context.obj = {"started": STARTED}


def main() -> None:
    """Run the command line; every error a user can mend is one line on standard error."""
    debug = "--debug" in sys.argv[1:2]
    # A stream that the caller closed (`2>&-`) is None; what takes its place stays open as long as it would have.
    sys.stdout, sys.stderr = (stream or Path(os.devnull).open("w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character gets its code, not a traceback.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        enter_run()
        app()
    except SpecprefillError as error:
        if debug:
            traceback.print_exception(error)
        fail(str(error), error.exit_code)
    except Exception as error:
        if debug:
            raise
        fail(
            f"unexpected {type(error).__name__}: {error}; run again with `specprefill --debug ...` for the traceback", 1
        )


def enter_run() -> None:
    """As one of several processes: on rank 0 meet the others, so that they end with it whatever the command; else follow it."""
    from specprefill_cli.distributed.launch import in_run, join_run

    if in_run() and int(os.environ["RANK"]) > 0:
        from specprefill_cli.answering.rank_worker import serve

        serve()
    if in_run():
        join_run()


def fail(message: str, code: int) -> None:
    from specprefill_cli.reporting.safe import printable

    print(f"specprefill: {' '.join(printable(message).split())}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()

"""Entry point: the commands, and errors as one line with the right exit code."""

from __future__ import annotations

import io
import os
import sys
import time
import traceback
from contextlib import suppress
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO, cast

import typer
from typer.core import TyperGroup

from specprefill_cli import __version__
from specprefill_cli.cli import ask, batch, compare, config, doctor, pairs, passages, plan, plugins, serve
from specprefill_cli.cli.arguments import check_dashes
from specprefill_cli.cli.console import Notes, StandardOutput, close_broken_pipe
from specprefill_cli.cli.help import tidy
from specprefill_cli.cli.workers import RayAddressCommand
from specprefill_cli.errors import INTERRUPTED, TERMINATED, SpecprefillError, first_line
from specprefill_cli.models.memory import keep_freed_memory
from specprefill_cli.models.threads import bound_spinning
from specprefill_cli.reporting.safe import printable
from specprefill_cli.signals import Termination

if TYPE_CHECKING:
    from specprefill_cli.serving.served import Served

# Start-up time is counted from here, as early as possible.
STARTED = time.perf_counter()
# Further commands, each a typer app or a function. The lab's are added this way, so that the product does not import it.
COMMANDS = "specprefill.commands"
LAB_PANEL = "Measure and calibrate"


class PipeGroup(TyperGroup):
    """Commands whose output may be cut short: `specprefill ... | head` is no error."""

    def invoke(self, ctx: Any) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            close_broken_pipe()
            raise typer.Exit(0) from None
        except Exception as error:
            # Typer's error about an unknown option, whose class is not public.
            if hasattr(error, "option_name"):
                check_dashes(sys.argv[1:])
            raise


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


def add_commands() -> None:
    """Add the product's commands, and those of the entry points."""
    app.command("ask")(ask.ask)
    app.command("batch", cls=RayAddressCommand)(batch.batch)
    app.command("compare")(compare.compare)
    app.command("passages")(passages.passages)
    app.command("plan")(plan.plan)
    app.command("serve")(serve.serve)
    app.add_typer(pairs.app, name="pairs")
    app.command("plugins")(plugins.plugins)
    app.command("doctor")(doctor.doctor)
    app.add_typer(config.app, name="config")
    for entry in sorted(entry_points(group=COMMANDS), key=lambda entry: entry.name):
        try:
            command = entry.load()
        except Exception as error:
            Notes(quiet=False).warn(f"command '{entry.name}' of {entry.value} cannot be loaded ({first_line(error)})")
            continue
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=entry.name, rich_help_panel=LAB_PANEL)
        else:
            app.command(entry.name, rich_help_panel=LAB_PANEL)(command)


add_commands()
tidy(app)


def show_version(requested: bool) -> None:
    """Print the version and exit."""
    if requested:
        print(f"specprefill {__version__}")
        raise typer.Exit


@app.callback()
def common(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback when something fails.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Take the options that stand before the command."""
    # main() reads --debug itself, before the command line is parsed.
    context.obj = context.obj or {"started": STARTED, "served": None, "main": main, "build": built_command}


def main(started: float = STARTED, served: Served | None = None) -> None:
    """Run the command line; an error that the user can fix is one line on standard error.

    started: when the program started, on the clock of `time.perf_counter`; served: the server that has taken the command
    """
    debug = "--debug" in sys.argv[1:2]
    # A stream that the caller closed (`2>&-`) is None.
    sys.stdout, sys.stderr = (stream or Path(os.devnull).open("w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal cannot show becomes an escape sequence instead of an error.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.stdout = cast(TextIO, StandardOutput(sys.stdout))
    keep_freed_memory()
    bound_spinning(os.environ)
    termination = Termination()
    with termination.handled():
        code = run(debug, {"started": started, "served": served, "main": main, "build": built_command})
    sys.exit(TERMINATED if termination.requested and code == INTERRUPTED else code)


def run(debug: bool, state: dict[str, Any]) -> int | str | None:
    """Run the command line, print its error, and return the exit code. state: what commands find in their context."""
    try:
        try:
            enter_run()
            built_command()(obj=state)
        finally:
            sys.stdout.flush()
    except SystemExit as ended:
        return ended.code
    except BrokenPipeError:
        close_broken_pipe()
        return 0
    except SpecprefillError as error:
        if debug:
            traceback.print_exception(error)
        message, code = str(error), error.exit_code
    except Exception as error:
        if debug:
            raise
        message = (
            f"unexpected {type(error).__name__}: {error}; run again with `specprefill --debug ...` for the traceback"
        )
        code = SpecprefillError.exit_code
    # Standard error may be full as well.
    with suppress(OSError):
        print(f"specprefill: {' '.join(printable(message).split())}", file=sys.stderr)
    return code


@cache
def built_command() -> Any:
    """The command line as typer builds it from the commands' signatures, which takes as long as a short answer."""
    return typer.main.get_command(app)


def enter_run() -> None:
    """Join the other ranks where this process is one of several; a rank other than 0 follows rank 0 and does not return."""
    from specprefill_cli.distributed.launch import in_run, join_run

    if in_run() and int(os.environ["RANK"]) > 0:
        from specprefill_cli.answering.rank_worker import serve

        serve()
    if in_run():
        join_run()


if __name__ == "__main__":
    main()

"""The command `specprefill`, also as `python -m specprefill_cli`: its commands, and errors as one line with an exit code."""

import errno
import io
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from specprefill_cli import __version__
from specprefill_cli.cli.console import discard
from specprefill_cli.errors import INTERRUPTED, TERMINATED, SpecprefillError
from specprefill_cli.models.machine.process import bound_spinning, reuse_freed_memory
from specprefill_cli.reporting.text import printable
from specprefill_cli.signals import terminate_like_interrupt

PACKAGE, LAB_PANEL = "specprefill_cli", "Measure and calibrate"
# The commands: a function or a typer app each. The product knows the lab's by name alone.
PRODUCT = {
    "ask": "cli.ask:ask",
    "batch": "cli.batch:batch",
    "compare": "cli.compare:compare",
    "passages": "cli.ask:passages",
    "plan": "cli.ask:plan",
    "serve": "cli.serve:serve",
    "pairs": "cli.doctor:pairs",
    "doctor": "cli.doctor:doctor",
    "config": "cli.doctor:config",
    "cache": "cli.doctor:cache",
}
LAB = {
    "bench": "lab.commands.bench:app",
    "calibrate": "lab.commands.calibrate:calibrate",
    "evaluate": "lab.commands.evaluate:evaluate",
    "study": "lab.commands.study:study",
}
COMMANDS = PRODUCT | LAB


class PipeGroup(TyperGroup):
    """Commands whose reader may close the pipe: `specprefill ... | head` is not an error."""

    def invoke(self, ctx: Any) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            discard(sys.stdout)
            raise typer.Exit(0) from None


def command_line(arguments: Sequence[str] = ()) -> typer.Typer:
    """Build the command line with what these arguments need: one command, or all."""
    first = next((argument for argument in arguments if argument != "--debug"), None)
    app = typer.Typer(
        name="specprefill",
        cls=PipeGroup,
        callback=common,
        help="Answer questions about long documents. A small draft model finds the parts that matter. The large target model "
        "reads only these, and the first token comes several times sooner.",
        epilog='Example: specprefill ask report.pdf "What is the notice period?"',
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name in [name for name in COMMANDS if name == first] or COMMANDS:
        command, panel = resolve_name(f"{PACKAGE}.{COMMANDS[name]}"), LAB_PANEL if name in LAB else None
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, rich_help_panel=panel)
        else:
            app.command(name, rich_help_panel=panel)(command)
    return app


def show_version(requested: bool) -> None:
    """Print the version and exit, if requested."""
    if requested:
        print(f"specprefill {__version__}")
        raise typer.Exit


def common(
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback when something fails.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Take the options that stand before the command. main() reads --debug itself, before the command line is parsed."""


def main() -> None:
    """Run the command line; print an error that the user can fix as a single line on standard error."""
    debug = "--debug" in sys.argv[1:2]
    # A stream that the caller closed (`2>&-`) is None.
    sys.stdin = sys.stdin or Path(os.devnull).open()  # noqa: SIM115
    sys.stdout, sys.stderr = (stream or Path(os.devnull).open("w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # Write a character that the terminal cannot show as an escape sequence instead of failing.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    reuse_freed_memory()
    bound_spinning(os.environ)
    terminated = terminate_like_interrupt()
    code = run_command(debug)
    sys.exit(TERMINATED if terminated.is_set() and code == INTERRUPTED else code)


def run_command(debug: bool) -> int | str | None:
    """Run the command line, print its error if any, and return the exit code."""
    try:
        try:
            enter_run()
            typer.main.get_command(command_line(sys.argv[1:]))()
        finally:
            sys.stdout.flush()
    except SystemExit as ended:
        return ended.code
    except BrokenPipeError:
        discard(sys.stdout)
        return 0
    except SpecprefillError as error:
        if debug:
            traceback.print_exception(error)
        message, code = str(error), error.exit_code
    except Exception as error:
        if debug:
            raise
        if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:
            discard(sys.stdout)
            message = f"standard output: cannot be written ({error.strerror}); make room, or send it elsewhere"
        else:
            message = f"unexpected {type(error).__name__}: {error}; run `specprefill --debug ...` for the traceback"
        code = SpecprefillError.exit_code
    # The disk of standard error may be full, too.
    with suppress(OSError):
        print(f"specprefill: {' '.join(printable(message).split())}", file=sys.stderr)
    return code


def enter_run() -> None:
    """Join the other ranks if this process is a rank. A rank other than 0 follows rank 0 and does not return."""
    from specprefill_cli.distributed.launch import follow_rank_0, in_run, join_run

    if in_run() and os.environ["RANK"] != "0":
        follow_rank_0()
    elif in_run():
        join_run()


if __name__ == "__main__":
    main()

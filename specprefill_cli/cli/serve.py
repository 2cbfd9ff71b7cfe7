"""`specprefill serve`: a resident session for commands and other programs."""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from specprefill_cli.cli.console import Notes, console, print_json
from specprefill_cli.cli.loading import document_reader
from specprefill_cli.cli.options import Json, Quiet, with_settings
from specprefill_cli.errors import UsageError
from specprefill_cli.models.refs import parse_endpoint
from specprefill_cli.reporting.safe import plain
from specprefill_cli.reporting.table import plain_table
from specprefill_cli.settings import Settings

SERVER = "Server"
UNITS = {"s": 1, "m": 60, "h": 3600}
EXTRA = "serve"
server_option = partial(typer.Option, rich_help_panel=SERVER)
optional = partial(server_option, show_default="none")


@with_settings("documents", "models", "prefill", "decoding", "cache", "passages")
def serve(
    documents: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DOCUMENTS", help="Documents to read ahead, for questions that bring none.", show_default=False
        ),
    ] = None,
    http: Annotated[
        str | None, optional(help="Also listen on this address, such as 127.0.0.1:8777. Requests need the token.")
    ] = None,
    token_file: Annotated[
        Path | None,
        optional(
            help="File with the token for --http.",
            show_default="one in the runtime folder",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        optional(help="Also accept this Host header, for proxies and containers; may be repeated."),
    ] = None,
    idle: Annotated[
        str | None, optional(help="Stop after this long without work: 90s, 30m or 2h.", show_default="never")
    ] = None,
    queue: Annotated[int, server_option(help="HTTP questions that may wait; more get 429.", min=0)] = 64,
    upstream: Annotated[
        str | None,
        optional(
            help="Act as a proxy for this OpenAI-compatible server: URL, or URL#MODEL to shorten only requests to one model."
        ),
    ] = None,
    status: Annotated[bool, server_option("--status", help="Show the running server, and exit.")] = False,
    stop: Annotated[bool, server_option("--stop", help="Stop the running server, and exit.")] = False,
    *,
    settings: Settings,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Keep the models loaded. `ask`, `batch`, `passages` and `plan` then start at once, and other programs can ask too.

    Listen on a Unix socket of your own, and with --http also on an address. Ctrl-C, SIGTERM and --stop finish the running
    answers first.

    Examples:
      specprefill serve &

      specprefill serve report.pdf --http 127.0.0.1:8777 --idle 30m

      specprefill serve --upstream http://localhost:11434/v1 --http 127.0.0.1:8777

      specprefill serve --status
    """
    from specprefill_cli.serving.listening import HAS_UNIX_SOCKETS

    if (status or stop) and not HAS_UNIX_SOCKETS:
        raise UsageError("serve: this system has no Unix sockets; ask /healthz, and stop the server with Ctrl-C")
    if status or stop:
        control(stop, json, Notes(quiet))
        return
    ref = None if upstream is None else parse_endpoint(upstream, "--upstream", any_model=True)
    if ref is not None and (documents or http is None):
        raise UsageError("serve --upstream: give --http 127.0.0.1:8777, and no documents: requests bring them")
    if not HAS_UNIX_SOCKETS and http is None:
        raise UsageError("serve: this system has no Unix sockets; give --http 127.0.0.1:8777")
    idle_seconds = None if idle is None else duration(idle)
    check_extra("serve")
    from specprefill_cli.serving.api import ServeOptions
    from specprefill_cli.serving.start import start

    notes = Notes(quiet)
    with notes.progress("reading documents"):
        collection = document_reader(settings)(documents) if documents else None
    options = ServeOptions(
        http=http,
        token_file=token_file,
        allowed_hosts=tuple(allow_host or ()),
        idle_seconds=idle_seconds,
        queue=queue,
        upstream=ref,
    )
    raise typer.Exit(start(settings, collection, options, notes.tell))


def control(stop: bool, json: bool, notes: Notes) -> None:
    """Show the running server, or stop it."""
    from specprefill_cli.serving.control import server_state, stop_server

    state = server_state()
    if stop and state is not None:
        stop_server(state["process"])
        notes.tell("the server has stopped")
        state = None
        if not json:
            return
    if json:
        print_json({"server": state})
    elif state is None:
        notes.tell("no server is running")
    else:
        table = plain_table()
        for name, value in state.items():
            text = ", ".join(value) if isinstance(value, list) else str(value)
            table.add_row(name.replace("_", " "), plain(text))
        console(sys.stdout).print(table)


def duration(text: str) -> float:
    """Parse a duration such as 30m to seconds. Raises UsageError for a wrong value."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh])", text.strip())
    if match is None or float(match[1]) <= 0:
        raise UsageError(f"--idle {text}: give a number and s, m or h, such as 30m")
    return float(match[1]) * UNITS[match[2]]


def check_extra(user: str) -> None:
    """Raise UsageError if packages of the extra are missing; user: the command or option that needs them."""
    from importlib.util import find_spec

    from specprefill_cli.installation import install_command

    missing = [name for name in ("starlette", "uvicorn", "prometheus_client", "httpx") if find_spec(name) is None]
    if missing:
        raise UsageError(f"{user}: not installed: {', '.join(missing)}; run: {install_command(EXTRA)}")

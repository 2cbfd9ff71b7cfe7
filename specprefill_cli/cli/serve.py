"""`specprefill serve`: a resident session for commands and other programs."""

import re
from functools import partial
from typing import Annotated

import typer

from specprefill_cli.cli.console import Notes, print_json
from specprefill_cli.cli.loading import document_reader
from specprefill_cli.cli.options import Quiet, with_settings, without_confirmation
from specprefill_cli.errors import UsageError, pip_command
from specprefill_cli.models.sources.refs import parse_endpoint
from specprefill_cli.settings import Settings

PACKAGES = "httpx", "prometheus-client", "starlette", "uvicorn"
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s]+")
server_option = partial(typer.Option, rich_help_panel="Server")
optional = partial(server_option, show_default="none")


@with_settings("documents", "models", "prefill", "decoding", "cache", "output", without=("confirm",))
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
    allow_origin: Annotated[
        list[str] | None,
        optional(
            help="Let web pages of this origin ask, such as http://localhost:3000, or * for all; may be repeated."
        ),
    ] = None,
    upstream: Annotated[
        str | None,
        optional(
            help="Act as a proxy for this OpenAI-compatible server: URL, or URL#MODEL to shorten only requests to one model."
        ),
    ] = None,
    status: Annotated[bool, server_option("--status", help="Print the running server as JSON, and exit.")] = False,
    stop: Annotated[bool, server_option("--stop", help="Stop the running server, and exit.")] = False,
    *,
    settings: Settings,
    quiet: Quiet = False,
) -> None:
    """Keep the models loaded. `ask`, `batch` and `passages` then start at once, and other programs can ask too.

    Listen on a Unix socket of your own, and with --http also on an address. Ctrl-C, SIGTERM and --stop finish the running
    answers first.

    Examples:
      specprefill serve &

      specprefill serve report.pdf --http 127.0.0.1:8777

      specprefill serve --upstream http://localhost:11434/v1 --http 127.0.0.1:8777
    """
    from specprefill_cli.serving.control import HAS_UNIX_SOCKETS

    if (status or stop) and not HAS_UNIX_SOCKETS:
        raise UsageError("serve: this system has no Unix sockets; ask /healthz, and stop the server with Ctrl-C")
    if status or stop:
        control(stop, Notes(quiet))
        return
    ref = None if upstream is None else parse_endpoint(upstream, "--upstream", any_model=True)
    if ref is not None and (documents or http is None):
        raise UsageError("serve --upstream: give --http 127.0.0.1:8777, and no documents: requests bring them")
    if not HAS_UNIX_SOCKETS and http is None:
        raise UsageError("serve: this system has no Unix sockets; give --http 127.0.0.1:8777")
    for origin in allow_origin or ():
        if origin != "*" and not ORIGIN.fullmatch(origin):
            problem = f"--allow-origin {origin}: no origin; give scheme and host, such as http://localhost:3000, or *"
            raise UsageError(problem)
    try:
        from specprefill_cli.serving.context import ServeOptions
        from specprefill_cli.serving.start import run_server
    except ImportError as error:
        raise UsageError(f"serve: {error.name} is not installed; run: {pip_command(*PACKAGES)}") from error
    notes = Notes(quiet)
    settings = without_confirmation(settings, notes)
    with notes.progress("reading documents"):
        collection = document_reader(settings)(documents) if documents else None
    options = ServeOptions(http=http, allowed_origins=tuple(allow_origin or ()), upstream=ref)
    raise typer.Exit(run_server(settings, collection, options, notes.line))


def control(stop: bool, notes: Notes) -> None:
    """Print the running server, or stop it."""
    from specprefill_cli.serving.control import server_state, stop_server

    state = server_state()
    if not stop:
        print_json({"server": state})
    elif state is None:
        notes.line("no server is running")
    else:
        stop_server(state["process"])
        notes.line("the server has stopped")

"""`specprefill compare`: modes side by side."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer

from specprefill_cli.cli.console import Notes, console, print_json
from specprefill_cli.cli.loading import new_request, open_ready_session, read_inputs, write_page
from specprefill_cli.cli.options import MODE_LIST, Documents, Html, Json, Question, Quiet, with_settings
from specprefill_cli.errors import INTERRUPTED
from specprefill_cli.settings import Settings


@with_settings("documents", "models", "prefill", "decoding", "output", lists=(MODE_LIST,))
def compare(
    documents: Documents = None,
    question: Question = None,
    *,
    settings: Settings,
    modes: list[str],
    json: Json = False,
    html: Html = None,
    quiet: Quiet = False,
) -> None:
    """Answer in each mode with the same models. Show answers, times and differences side by side.

    Every mode starts cold, for comparable times.

    Examples:
      specprefill compare report.pdf "Who signed?" --keep 0.1 --html page.html
    """
    request, notes = new_request("compare", documents, question, settings), Notes(quiet)
    collection = read_inputs(documents or (), html, settings, notes)
    session = open_ready_session([settings.varied(mode=mode) for mode in modes], notes)
    from specprefill_cli.answering.tasks import compare_modes
    from specprefill_cli.prefill.shortlist import shortlist

    collection = shortlist(collection, request.question, settings)
    try:
        with notes.progress("answering") as update:
            show_mode: Callable[[str], None] = lambda mode: update(f"answering in mode {mode}")  # noqa: E731
            comparison = compare_modes(session, collection, request.question, settings, modes, show_mode)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    if html:
        write_page(html, collection, comparison, settings)
    if json:
        return print_json(comparison.to_json())
    from specprefill_cli.reporting.table import comparison_view

    console(sys.stdout).print(comparison_view(comparison))

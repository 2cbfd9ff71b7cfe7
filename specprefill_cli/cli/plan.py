"""`specprefill plan`: what would be kept, without the target."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from specprefill_cli.cli.console import Notes, console, print_json
from specprefill_cli.cli.inputs import check_question, read_inputs, write_page
from specprefill_cli.cli.loading import seconds_since_start
from specprefill_cli.cli.options import Html, Json, Quiet, with_settings
from specprefill_cli.settings import Settings

if TYPE_CHECKING:
    from specprefill_cli.answering.session import Session


@with_settings(
    "models",
    "prefill",
    "max_new_tokens",
    without=("mode", "recompute", "accept_risk", "exact_layers", "tensor_parallel", "quantization"),
)
def plan(
    context: typer.Context,
    documents: Annotated[
        list[str], typer.Argument(help="Files, folders or globs; - is standard input.", show_default=False)
    ],
    question: Annotated[str, typer.Argument(help="The question, in quotes.", show_default=False)],
    *,
    settings: Settings,
    json: Json = False,
    html: Html = None,
    quiet: Quiet = False,
) -> None:
    """Show what `select` would keep of the documents, and what that should cost. The target's weights are not loaded.

    The strip shows each page's chunks by importance, and which are kept; the table estimates the time to first token
    for several keep ratios, by counted operations.

    Examples:
      specprefill plan report.pdf "What is the notice period?" --keep 0.2

      specprefill plan docs/ "Who signed the lease?" --html plan.html

      specprefill plan report.pdf "Who?" --json | jq '.chunks | max_by(.importance) | .pages'
    """
    check_question(question)
    notes = Notes(quiet)
    collection = read_inputs(documents, html, notes)
    with notes.progress("loading the draft, and the target's tokenizer"):
        session = open_draft_side(settings)
    startup_seconds = seconds_since_start(context)
    from specprefill_cli.answering.dry_run import dry_run
    from specprefill_cli.reporting import dry_run_report

    with notes.progress("reading the documents with the draft"):
        run = dry_run(session, collection, question, settings)
    cells = dry_run_report.plan_cells(run, collection, settings.chunk_size)
    if html:
        write_page(html, question, collection, [dry_run_report.plan_result(run, cells)])
    if json:
        print_json(dry_run_report.plan_record(run, cells, collection, startup_seconds))
        return
    from specprefill_cli.reporting.strip import heat_strip, legend

    out = console(sys.stdout)
    colour = out.color_system is not None and not out.no_color
    out.print(heat_strip(collection, cells, colour))
    out.print(legend(settings.chunk_size, colour), style="dim")
    out.print(dry_run_report.plan_table(run))
    out.print(dry_run_report.estimate_table(dry_run_report.estimate_rows(run)))
    out.print(dry_run_report.ESTIMATE_NOTE, style="dim")


def open_draft_side(settings: Settings) -> Session:
    """Load the draft where a dry run needs it, and of the target only its configuration and tokenizer."""
    from specprefill_cli.answering.dry_run import PLANNED_MODE
    from specprefill_cli.answering.session import open_session
    from specprefill_cli.distributed.ranks import ALONE
    from specprefill_cli.models.loading import load_draft_side
    from specprefill_cli.prefill.auto_mode import needs_draft

    draft = needs_draft(settings.varied(mode=PLANNED_MODE))
    return open_session(settings, draft, load=load_draft_side, ranks=ALONE)

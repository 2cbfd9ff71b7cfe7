"""`specprefill plan`: what would be kept, without the target."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer
from rich.console import Group
from rich.styled import Styled

from specprefill_cli.cli.console import Notes, console, print_json
from specprefill_cli.cli.inputs import checked_arguments, read_inputs, write_page
from specprefill_cli.cli.loading import ask_draft
from specprefill_cli.cli.options import OF_TARGET, Documents, Html, Json, Question, Quiet, with_settings
from specprefill_cli.engine.request import PLAN
from specprefill_cli.record import DryRun
from specprefill_cli.settings import Settings

if TYPE_CHECKING:
    from specprefill_cli.documents.document import Collection


@with_settings(
    "documents",
    "models",
    "prefill",
    "max_new_tokens",
    without=OF_TARGET,
    served=True,
)
def plan(
    context: typer.Context,
    documents: Documents = None,
    question: Question = None,
    *,
    settings: Settings,
    json: Json = False,
    html: Html = None,
    quiet: Quiet = False,
) -> None:
    """Show the chunks that `select` would keep, and estimate the time. Load no weights of the target.

    The strip shows importance and fate of each page's chunks. The table estimates the time to first token for several
    keep ratios from counted operations.

    Examples:
      specprefill plan report.pdf "What is the notice period?" --keep 0.2

      specprefill plan docs/ "Who signed the lease?" --html plan.html

      specprefill plan report.pdf "Who?" --json | jq '.chunks[0].importance'
    """
    names, question = checked_arguments("plan", documents, question)
    notes = Notes(quiet)
    collection = read_inputs(names, html, settings, notes)
    run, startup_seconds = ask_draft(context, PLAN, names, collection, question, settings, notes)
    from specprefill_cli.reporting import dry_run_report

    if html:
        write_page(html, question, collection, [dry_run_report.plan_result(run)])
    if json:
        print_json(dry_run_report.plan_record(run, collection, startup_seconds))
        return
    out = console(sys.stdout)
    out.print(plan_report(run, collection, settings.chunk_size))
    out.print(dry_run_report.ESTIMATE_NOTE, style="dim")


def plan_report(run: DryRun, collection: Collection, chunk_size: int) -> Group:
    """A strip of the document by importance, and tables of what is kept and what that should cost."""
    from specprefill_cli.reporting.dry_run_report import estimate_rows, estimate_table, plan_facts
    from specprefill_cli.reporting.strip import heat_strip, legend
    from specprefill_cli.reporting.table import facts_table, warning_facts

    return Group(
        heat_strip(collection, run.cells),
        Styled(legend(chunk_size), "dim"),
        facts_table([*plan_facts(run), *warning_facts(run.warnings)]),
        estimate_table(estimate_rows(run)),
    )

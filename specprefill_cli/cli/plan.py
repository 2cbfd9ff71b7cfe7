"""`specprefill plan`: how much `select` would keep, without the target."""

from __future__ import annotations

import sys
from dataclasses import asdict

from specprefill_cli.cli.console import Notes, console, print_json
from specprefill_cli.cli.inputs import check_arguments
from specprefill_cli.cli.loading import ask_draft
from specprefill_cli.cli.options import OF_TARGET, Documents, Json, NoServer, Question, Quiet, with_settings
from specprefill_cli.engine.request import PLAN
from specprefill_cli.settings import Settings


@with_settings("documents", "models", "prefill", "max_new_tokens", without=OF_TARGET)
def plan(
    documents: Documents = None,
    question: Question = None,
    *,
    settings: Settings,
    json: Json = False,
    quiet: Quiet = False,
    no_server: NoServer = False,
) -> None:
    """Show how much `select` would keep, and on which pages, and estimate the time. Load no weights of the target.

    The table estimates the time to first token for several keep ratios from counted operations. --json has every chunk.

    Examples:
      specprefill plan report.pdf "What is the notice period?" --keep 0.2

      specprefill plan report.pdf "Who?" --json | jq '.chunks[0].importance'
    """
    names, question = check_arguments("plan", documents, question)
    run = ask_draft(PLAN, names, question, settings, Notes(quiet), no_server)
    if json:
        print_json(asdict(run))
        return
    from specprefill_cli.reporting.table import plan_view

    console(sys.stdout).print(plan_view(run))

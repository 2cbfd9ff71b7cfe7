"""`specprefill plan`: what would be kept, without the target."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import Annotated

import typer

from specprefill_cli.cli import options
from specprefill_cli.cli.console import Notes, console, print_json


def plan(
    context: typer.Context,
    documents: Annotated[
        list[str], typer.Argument(help="Files, folders or globs; - is standard input.", show_default=False)
    ],
    question: Annotated[str, typer.Argument(help="The question, in quotes.", show_default=False)],
    keep: options.Keep = None,
    scorer: options.Scorer = None,
    look_ahead: options.LookAhead = None,
    chunk_size: options.ChunkSize = None,
    draft_window: options.DraftWindow = None,
    prefill_chunk: options.PrefillChunk = None,
    prompt: options.Prompt = None,
    pair: options.Pair = None,
    draft: options.Draft = None,
    target: options.Target = None,
    devices: options.Devices = None,
    dtype: options.Dtype = None,
    offline: options.Offline = None,
    max_new_tokens: options.MaxNewTokens = None,
    json: options.Json = False,
    html: options.Html = None,
    quiet: options.Quiet = False,
) -> None:
    """Show what `select` would keep of the documents, and what that should cost. The target's weights are not loaded.

    The strip shows each page's chunks by importance, and which are kept; the table estimates the time to first token
    for several keep ratios, by counted operations.

    Examples:
      specprefill plan report.pdf "What is the notice period?" --keep 0.2

      specprefill plan docs/ "Who signed the lease?" --html plan.html

      specprefill plan report.pdf "Who?" --json | jq '.chunks | max_by(.importance) | .pages'
    """
    settings = options.settings_from(locals())
    options.check_question(question)
    options.check_html(html)
    notes = Notes(quiet)
    from specprefill_cli.documents import read_collection

    with notes.progress("reading documents"):
        collection = read_collection(documents)
    options.check_no_document(html, collection)
    with notes.progress("loading the draft, and the target's tokenizer"):
        from specprefill_cli.answering.dry_run import PLANNED_MODE, dry_run
        from specprefill_cli.answering.session import check_names, open_session
        from specprefill_cli.distributed.ranks import ALONE
        from specprefill_cli.models.loading import load_draft_side
        from specprefill_cli.prefill.auto_mode import needs_draft

        check_names(settings)
        with_draft = needs_draft(replace(settings, mode=PLANNED_MODE))
        session = open_session(settings, with_draft, load=load_draft_side, ranks=ALONE)
    startup_seconds = time.perf_counter() - context.obj["started"]
    with notes.progress("reading the documents with the draft"):
        run = dry_run(session, collection, question, settings)
    from specprefill_cli.reporting import dry_run_report as plan_report

    cells = plan_report.plan_cells(run, collection, settings.chunk_size)
    if html:
        options.write_html(html, question, collection, [plan_report.plan_result(run, cells)])
    if json:
        print_json(plan_report.plan_record(run, cells, collection, startup_seconds))
        return
    from specprefill_cli.reporting.strip import heat_strip, legend

    out = console(sys.stdout)
    colour = out.color_system is not None and not out.no_color
    out.print(heat_strip(collection, cells, colour))
    out.print(legend(settings.chunk_size, colour), style="dim")
    out.print(plan_report.plan_table(run))
    out.print(plan_report.estimate_table(plan_report.estimate_rows(run)))
    out.print(plan_report.ESTIMATE_NOTE, style="dim")

"""`specprefill passages` and `specprefill plan`: the draft's passages or plan, without the target's weights."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specprefill_cli.cli.console import Notes, console, print_json
from specprefill_cli.cli.loading import check_arguments, find_server, open_engine, open_ready_session, read_inputs
from specprefill_cli.cli.options import OF_TARGET, Documents, Json, NoServer, Question, Quiet, with_settings
from specprefill_cli.engine.request import PASSAGES, PLAN, Done, Request, WaitingEngine
from specprefill_cli.record import PLANNED_MODE
from specprefill_cli.settings import OUTPUT, Settings

if TYPE_CHECKING:
    from specprefill_cli.documents.document import Collection


@with_settings("documents", "models", "prefill", without=(*OF_TARGET, "positions"))
def passages(
    documents: Documents = None,
    question: Question = None,
    top: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Print the best N passages of one to three sentences, instead of a share (--keep).",
            show_default="none",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    *,
    settings: Settings,
    json: Json = False,
    quiet: Quiet = False,
    no_server: NoServer = False,
) -> None:
    """Print the passages that matter for a question, in document order. Run only the draft.

    Examples:
      specprefill passages report.pdf "What is the fee?" --top 3

      specprefill passages report.pdf "What is the fee?" | llm "What is the fee?"

      specprefill passages docs/ "Who signed?" --json | jq -r '.passages[].text'
    """
    names, question = check_arguments("passages", documents, question)
    notes = Notes(quiet)
    retrieval = ask_draft(PASSAGES, names, question, settings, notes, no_server, top)
    from specprefill_cli.reporting.text import by_page, printable

    for warning in retrieval.warnings:
        notes.warn(warning)
    if json:
        print_json(asdict(retrieval))
        return
    texts = [
        f"[{place}]\n" + "\n\n".join(" ".join(passage.text.split()) for passage in page_passages)
        for place, page_passages in by_page(retrieval.passages)
    ]
    print(printable("\n\n".join(texts)), flush=True)


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


def ask_draft(
    task: str,
    names: Sequence[str],
    question: str,
    settings: Settings,
    notes: Notes,
    no_server: bool,
    top: int | None = None,
) -> Any:
    """Run a task that needs only the draft (`Request.task`) and return its result. names: of the documents."""
    engine: WaitingEngine | None = None if no_server else find_server(settings, notes)
    documents: Collection | tuple[str, ...] = tuple(names)
    if engine is None:
        documents = read_inputs(names, None, settings, notes)
        variants = [settings.varied(mode=PLANNED_MODE)]
        engine = open_engine(open_ready_session(variants, notes, target_weights=False), settings)
    request = Request(documents=documents, question=question, settings=settings, task=task, top=top)
    with notes.progress("reading the documents with the draft"):
        return next(event.result for event in engine.ask(request) if isinstance(event, Done))

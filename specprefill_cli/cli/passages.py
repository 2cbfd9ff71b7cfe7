"""`specprefill passages`: the passages about a question, for any other model or for reading."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from specprefill_cli.cli.console import Notes, print_json
from specprefill_cli.cli.inputs import check_arguments
from specprefill_cli.cli.loading import ask_draft
from specprefill_cli.cli.options import OF_TARGET, Documents, Json, NoServer, Question, Quiet, with_settings
from specprefill_cli.engine.request import PASSAGES
from specprefill_cli.settings import OUTPUT, Settings


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
    from specprefill_cli.reporting.evidence import by_page
    from specprefill_cli.reporting.safe import printable

    for warning in retrieval.warnings:
        notes.warn(warning)
    if json:
        print_json(asdict(retrieval))
        return
    texts = [
        f"[{place}]\n" + "\n\n".join(" ".join(passage.text.split()) for passage in passages_there)
        for place, passages_there in by_page(retrieval.passages)
    ]
    print(printable("\n\n".join(texts)), flush=True)

"""Asking the draft alone, as `passages` and `plan` do: the server's, or one that is loaded here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import typer

from specprefill_cli.cli.console import Notes
from specprefill_cli.cli.inputs import read_inputs
from specprefill_cli.cli.loading import open_draft_side, running_server, seconds_since_start
from specprefill_cli.documents.sources import STANDARD_INPUT
from specprefill_cli.engine.request import Done, Request
from specprefill_cli.settings import Settings

if TYPE_CHECKING:
    from specprefill_cli.documents.collection import Collection
    from specprefill_cli.engine.http import HttpEngine
    from specprefill_cli.engine.local import LocalEngine


def ask_draft(
    context: typer.Context,
    task: str,
    names: Sequence[str],
    collection: Collection | None,
    question: str,
    settings: Settings,
    notes: Notes,
    top: int | None = None,
    started: Callable[[float], None] = lambda _seconds: None,
) -> Any:
    """The result of a task of `Request`.

    names: of the documents; collection: the documents, where they were read already
    started: told the seconds of start-up
    """
    # Standard input gives its document only once.
    read_before = collection is not None and STANDARD_INPUT in names
    server = None if read_before else running_server(context, settings, notes)
    engine: HttpEngine | LocalEngine
    documents: Collection | tuple[str, ...] = tuple(names)
    if server is not None:
        engine = server
    else:
        documents = read_inputs(names, None, settings, notes) if collection is None else collection
        with notes.progress("loading the draft, and the target's tokenizer"):
            engine = open_draft_side(settings, notes)
    started(seconds_since_start(context))
    request = Request(documents=documents, question=question, settings=settings, task=task, top=top)
    with notes.progress("reading the documents with the draft"):
        return next(event.result for event in engine.ask(request) if isinstance(event, Done))

"""Opening what a command asks: this user's server, or an engine of its own, warmed up."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specprefill_cli.cli import STARTED
from specprefill_cli.cli.console import Notes
from specprefill_cli.cli.inputs import read_inputs
from specprefill_cli.engine.request import Done, Engine, Request
from specprefill_cli.models import smollm2
from specprefill_cli.models.hub import may_download
from specprefill_cli.models.pairs import chosen_pair
from specprefill_cli.models.refs import Kind, ModelRef, is_endpoint
from specprefill_cli.settings import AUTO, Settings

if TYPE_CHECKING:
    from specprefill_cli.answering.session import Session
    from specprefill_cli.batching.engine_rows import Reader
    from specprefill_cli.documents.document import Collection
    from specprefill_cli.engine.http import HttpEngine


def find_server(settings: Settings, notes: Notes) -> HttpEngine | None:
    """This user's server, where one runs that answers as this process would; none asks a target behind an endpoint."""
    if is_endpoint(settings.target):
        return None
    from specprefill_cli.serving.control import server_for

    return server_for(settings, seconds_since_start, lambda reason: notes.line(f"specprefill: {reason}"))


def open_ready_session(variants: Sequence[Settings], notes: Notes, any_mode: bool = False) -> Session:
    """Load the pair and run it once in each of the variants that will be asked for.

    any_mode: whether other modes than those of the variants may be asked for later, so that the draft may be needed

    Raises SpecprefillError when a model cannot be loaded.
    """
    prepare_target(variants[0], notes)
    with notes.progress("loading the models"):
        from specprefill_cli.models.memory import import_transformers

        import_transformers()
        from specprefill_cli.answering.resolve import loads_draft, resolve_scorer
        from specprefill_cli.answering.session import open_session

        if is_endpoint(variants[0].target):
            from specprefill_cli.endpoint.session import open_endpoint

            session: Session = open_endpoint(variants[0])
        else:
            possible = [*variants, variants[0].varied(mode=AUTO)] if any_mode else variants
            session = open_session(variants[0], any(map(loads_draft, possible)))
        for variant in variants:
            session.warm_up(variant.varied(scorer=resolve_scorer(variant.scorer, session.pair, variant.mode)))
    session.startup_seconds = seconds_since_start()
    return session


def open_engine(
    session: Session, settings: Settings, concurrency: int | None = 1, read: Reader | None = None
) -> Engine:
    """An engine that asks a session. concurrency: questions at once, None for as many as pay; read: reads documents."""
    from specprefill_cli.documents import read_collection

    if is_endpoint(settings.target):
        from specprefill_cli.endpoint.session import CAPACITY, EndpointEngine

        return EndpointEngine(session, concurrency or CAPACITY, read or read_collection)
    from specprefill_cli.engine.local import LocalEngine

    return LocalEngine(session, concurrency, read=read or read_collection)


def open_draft_side(settings: Settings, notes: Notes) -> Engine:
    """An engine with the draft, where the scorer needs it, and of the target only its configuration and tokenizer.

    Raises SpecprefillError when they cannot be loaded.
    """
    prepare_target(settings, notes)
    with notes.progress("loading the draft, and the target's tokenizer"):
        from specprefill_cli.models.memory import import_transformers

        import_transformers()
        from specprefill_cli.answering.session import open_session
        from specprefill_cli.distributed.ranks import ALONE
        from specprefill_cli.prefill.registry import runs_draft
        from specprefill_cli.record import PLANNED_MODE

        with_draft = runs_draft(PLANNED_MODE, settings.scorer)
        session = open_session(settings, with_draft, target_weights=False, ranks=ALONE)
    return open_engine(session, settings)


def prepare_target(settings: Settings, notes: Notes) -> None:
    """Convert a target in a file that was not converted before, and show why that takes a while.

    Raises SpecprefillError, before torch is imported, if the target is not here and cannot be downloaded.
    """
    target = chosen_pair(settings).target
    if settings.target is None:
        may_download(target, settings.offline)
    ref = ModelRef(target)
    if ref.conversion is None or ref.conversion.done:
        return
    if ref.kind is Kind.PACKAGED:
        notes.line(f"{target}: converting {smollm2.PACKAGE}'s file once; later runs load it in a second")
    with notes.bar("parts", 100) as update:
        ref.source(update)


def seconds_since_start() -> float:
    """Time since the program started."""
    return time.perf_counter() - STARTED


def ask_draft(
    task: str,
    names: Sequence[str],
    question: str,
    settings: Settings,
    notes: Notes,
    no_server: bool,
    top: int | None = None,
) -> Any:
    """The result of a task of `Request` that needs no answer. names: of the documents."""
    engine: Engine | None = None if no_server else find_server(settings, notes)
    documents: Collection | tuple[str, ...] = tuple(names)
    if engine is None:
        documents = read_inputs(names, None, settings, notes)
        engine = open_draft_side(settings, notes)
    request = Request(documents=documents, question=question, settings=settings, task=task, top=top)
    with notes.progress("reading the documents with the draft"):
        return next(event.result for event in engine.ask(request) if isinstance(event, Done))

"""Loading what a command asks with: a session, warmed up, and warnings about options without effect."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from specprefill_cli.cli.console import Notes
from specprefill_cli.cli.options import Given
from specprefill_cli.models.hub import may_download
from specprefill_cli.models.light_import import import_transformers
from specprefill_cli.models.pairs import find_pair
from specprefill_cli.serving.messages import Open
from specprefill_cli.settings import Settings

if TYPE_CHECKING:
    from specprefill_cli.answering.dry_run import DryRun
    from specprefill_cli.answering.retrieval import Retrieval
    from specprefill_cli.answering.session import Session
    from specprefill_cli.documents.collection import Collection
    from specprefill_cli.prefill.disk_cache import DiskCache
    from specprefill_cli.serving.remote import RemoteSession


def open_ready_session(
    context: typer.Context | None, variants: Sequence[Settings], given: Given, notes: Notes, draft: bool | None = None
) -> Session:
    """Load the pair and run it once in each of the variants that will be asked for; warn of options without effect.

    context: knows when the program started; None: the caller measures start-up; given: settings given on the command line
    draft: whether to load the draft too; None: where one of the variants needs it

    Raises SpecprefillError when a model cannot be loaded.
    """
    check_target(variants[0])
    import_transformers()
    from specprefill_cli.answering.resolve import loads_draft, resolve_scorer
    from specprefill_cli.answering.session import open_session

    needs_draft = any(map(loads_draft, variants)) if draft is None else draft
    session = open_session(variants[0], draft=needs_draft)
    resolved = [
        settings.varied(scorer=resolve_scorer(settings.scorer, session.pair, settings.mode)) for settings in variants
    ]
    for settings in resolved:
        session.warm_up(settings)
    warn_of_idle_options(given, resolved, notes)
    if context is not None:
        session.startup_seconds = seconds_since_start(context)
    return session


def open_answering(
    context: typer.Context | None,
    settings: Settings,
    given: Given,
    notes: Notes,
    *,
    cached: bool = False,
    store: DiskCache | None = None,
    with_cells: bool = False,
) -> Session | RemoteSession:
    """A session that is ready to answer: the server's, where one has taken the command, else one of its own.

    context: as in `open_ready_session`; without one the session is the caller's own
    cached: whether it keeps documents between questions, as --memory-cache allows; store: and between runs
    with_cells: whether answers need the document's cells

    Raises SpecprefillError when a model cannot be loaded.
    """

    def open_own() -> Session:
        session = open_ready_session(context, [settings], given, notes)
        if not cached:
            return session
        from specprefill_cli.prefill.cache_limit import document_cache

        return session.with_cache(document_cache(settings.memory_cache, session.pair, store))

    server = context.obj["served"] if context is not None else None
    if context is None or server is None:
        return open_own()
    from specprefill_cli.answering.resolve import loads_draft
    from specprefill_cli.serving.remote import open_remote

    opening = Open(
        mode=settings.mode, draft=loads_draft(settings), memory_cache=settings.memory_cache if cached else None
    )
    session = open_remote(server.engine, settings, opening, open_own, notes.warn)
    if session is None:
        return open_own()
    warn_of_idle_options(given, [settings.varied(scorer=session.scorer)], notes)
    session.with_cells = with_cells
    session.startup_seconds = seconds_since_start(context)
    return session


def check_target(settings: Settings) -> None:
    """Raises SpecprefillError, before torch is imported, for a pair whose target is not here and cannot be downloaded."""
    if settings.target is None:
        may_download(find_pair(settings.pair).target, settings.offline)


@dataclass(frozen=True)
class OwnDraftSide:
    """What `passages` and `plan` ask, with a session of the command's own."""

    session: Session

    def retrieve(self, collection: Collection, question: str, settings: Settings, top: int | None) -> Retrieval:
        """As `retrieve`."""
        from specprefill_cli.answering.retrieval import retrieve

        return retrieve(self.session, collection, question, settings, top)

    def dry_run(self, collection: Collection, question: str, settings: Settings) -> DryRun:
        """As `dry_run`."""
        from specprefill_cli.answering.dry_run import dry_run

        return dry_run(self.session, collection, question, settings)


def open_draft_side(context: typer.Context, settings: Settings, notes: Notes) -> OwnDraftSide | RemoteSession:
    """The draft, where the scorer needs it, and of the target only its configuration and tokenizer.

    They are the server's, where one has taken the command. Raises SpecprefillError when they cannot be loaded.
    """

    def open_own() -> Session:
        check_target(settings)
        import_transformers()
        from specprefill_cli.answering.session import open_session
        from specprefill_cli.distributed.ranks import ALONE

        return open_session(settings, scores_with_draft(settings), target_weights=False, ranks=ALONE)

    server = context.obj["served"]
    if server is not None:
        from specprefill_cli.serving.remote import open_remote

        opening = Open(mode=settings.mode, draft=scores_with_draft(settings), target_weights=False)
        session = open_remote(server.engine, settings, opening, open_own, notes.warn)
        if session is not None:
            return session
    return OwnDraftSide(open_own())


def scores_with_draft(settings: Settings) -> bool:
    """Whether the scorer needs the draft."""
    from specprefill_cli.answering.resolve import PLANNED_MODE
    from specprefill_cli.prefill.auto_mode import runs_draft

    return runs_draft(PLANNED_MODE, settings.scorer)


def warn_of_idle_options(given: Given, variants: Sequence[Settings], notes: Notes) -> None:
    """Warn of settings that were given and have no effect in any of the variants, whose `auto` scorer is resolved."""
    from specprefill_cli.cli.idle_options import idle_options

    for warning in idle_options(given, variants):
        notes.warn(warning)


def seconds_since_start(context: typer.Context) -> float:
    """Time since the program started."""
    return time.perf_counter() - context.obj["started"]

"""Loading what a command asks with: a session, warmed up, and warnings about options without effect."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from specprefill_cli.cli.console import Notes
from specprefill_cli.cli.options import Given
from specprefill_cli.models.hub import may_download
from specprefill_cli.models.light_import import import_transformers
from specprefill_cli.models.pairs import find_pair
from specprefill_cli.settings import Settings

if TYPE_CHECKING:
    from specprefill_cli.answering.session import Session


def open_ready_session(
    context: typer.Context, variants: Sequence[Settings], given: Given, notes: Notes, draft: bool | None = None
) -> Session:
    """Load the pair and run it once in each of the variants that will be asked for; warn of options without effect.

    context: knows when the program started; given: settings given on the command line
    draft: whether to load the draft too; None: where one of the variants needs it

    Raises SpecprefillError when a model cannot be loaded.
    """
    check_target(variants[0])
    import_transformers()
    from specprefill_cli.answering.resolve import loads_draft, resolve_scorer
    from specprefill_cli.answering.session import open_session

    needs_draft = any(map(loads_draft, variants)) if draft is None else draft
    session = open_session(variants[0], draft=needs_draft)
    resolved = [settings.varied(scorer=resolve_scorer(settings.scorer, session.pair)) for settings in variants]
    for settings in resolved:
        session.warm_up(settings)
    warn_of_idle_options(given, resolved, notes)
    session.startup_seconds = seconds_since_start(context)
    return session


def check_target(settings: Settings) -> None:
    """Raises SpecprefillError, before torch is imported, for a pair whose target is not here and cannot be downloaded."""
    if settings.target is None:
        may_download(find_pair(settings.pair).target, settings.offline)


def open_draft_side(settings: Settings) -> Session:
    """Load the draft, where the scorer needs it, and of the target only its configuration and tokenizer."""
    check_target(settings)
    import_transformers()
    from specprefill_cli.answering.dry_run import PLANNED_MODE
    from specprefill_cli.answering.session import open_session
    from specprefill_cli.distributed.ranks import ALONE
    from specprefill_cli.prefill.auto_mode import runs_draft

    draft = runs_draft(PLANNED_MODE, settings.scorer)
    return open_session(settings, draft, target_weights=False, ranks=ALONE)


def warn_of_idle_options(given: Given, variants: Sequence[Settings], notes: Notes) -> None:
    """Warn of settings that were given and have no effect in any of the variants, whose `auto` scorer is resolved."""
    from specprefill_cli.cli.idle_options import idle_options

    for warning in idle_options(given, variants):
        notes.warn(warning)


def seconds_since_start(context: typer.Context) -> float:
    """Time since the program started."""
    return time.perf_counter() - context.obj["started"]

"""What answers the rows of a batch: a session of this process or of a worker, with the documents that rows share."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from specprefill_cli.cli.console import Notes
from specprefill_cli.cli.inputs import document_reader
from specprefill_cli.cli.loading import open_answering
from specprefill_cli.cli.workers import RelayedNotes, settings_of_place
from specprefill_cli.models.memory import keep_freed_memory
from specprefill_cli.models.threads import bound_spinning
from specprefill_cli.settings import Settings

if TYPE_CHECKING:
    from specprefill_cli.batching.answerer import SessionAnswerer
    from specprefill_cli.batching.executor import Executor, Place, Tell
    from specprefill_cli.documents.collection import Collection
    from specprefill_cli.prefill.disk_cache import DiskCache


def read_own(settings: Settings, names: tuple[str, ...], notes: Notes) -> Collection | None:
    """The documents of rows that name none."""
    with notes.progress("reading documents"):
        return document_reader(settings, notes)(names) if names else None


def open_answerer(
    context: typer.Context | None,
    settings: Settings,
    own: Collection | None,
    store: DiskCache | None,
    notes: Notes,
    concurrency: int | None = 1,
) -> SessionAnswerer:
    """Load the models, and warm them up.

    context: None where the caller measures how long it takes; concurrency: rows at once, None: automatic
    """
    from specprefill_cli.batching.answerer import SessionAnswerer, read_once

    with notes.progress("loading the models"):
        # A row may bring what gives an option its effect: nothing is idle here.
        session = open_answering(context, settings, {}, notes, cached=True, store=store)
    return SessionAnswerer(session, settings, read_once(document_reader(settings, notes)), own, concurrency)


def in_this_process(answer: SessionAnswerer) -> Executor:
    """The executor of this process: several rows at a time, or one after the other where the session cannot do that."""
    from specprefill_cli.answering.session import Session
    from specprefill_cli.batching.executor import InProcess
    from specprefill_cli.batching.loop import record_of

    if answer.concurrency == 1 or not isinstance(answer.session, Session) or answer.session.pair.ranks.size > 1:
        return InProcess(partial(record_of, answer=answer))
    from specprefill_cli.batching.row_scheduler import InThread

    return InThread(answer, answer.session)


@dataclass(frozen=True)
class SessionOpener:
    """Opens the session of a worker in another process.

    folder: the working directory of the command, which the paths of documents are relative to
    """

    settings: Settings
    own: Collection | None
    cache_dir: Path | None
    cache_limit: float
    folder: str
    concurrency: int | None = 1

    def __call__(self, place: Place, tell: Tell) -> SessionAnswerer:
        """Raises SpecprefillError where a model cannot be loaded."""
        began = time.perf_counter()
        os.chdir(self.folder)
        keep_freed_memory()
        bound_spinning(os.environ)
        notes = RelayedNotes(tell)
        settings = settings_of_place(self.settings, place)
        store = disk_cache(self.cache_dir, self.cache_limit, notes)
        answer = open_answerer(None, settings, self.own, store, notes, self.concurrency)
        answer.session.startup_seconds = time.perf_counter() - began
        return answer


def disk_cache(cache_dir: Path | None, cache_limit: float, notes: Notes) -> DiskCache | None:
    """The folder that keeps the draft's KV for later runs, if there is one; cache_limit: its size, in GiB."""
    from specprefill_cli.prefill.disk_cache import DiskCache

    return DiskCache(cache_dir, int(cache_limit * 2**30), notes.warn) if cache_dir is not None else None

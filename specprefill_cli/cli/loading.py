"""A command's documents and question, and the engine that answers: this user's server, or a warm engine in this process."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specprefill_cli.cli import STARTED
from specprefill_cli.cli.console import Notes
from specprefill_cli.documents.cleaning import clean_question
from specprefill_cli.documents.document import Collection
from specprefill_cli.engine.request import Engine, ReadDocuments, Request
from specprefill_cli.errors import UsageError
from specprefill_cli.files import check_can_write, only_read_here, same_file, write_whole
from specprefill_cli.models.machine.process import bound_spinning, import_transformers, reuse_freed_memory
from specprefill_cli.models.sources.hub import fetch_gguf, may_download
from specprefill_cli.models.sources.pairs import chosen_pair
from specprefill_cli.models.sources.refs import Kind, ModelRef, is_endpoint
from specprefill_cli.record import Comparison
from specprefill_cli.settings import Settings

if TYPE_CHECKING:
    from specprefill_cli.answering.session import Session
    from specprefill_cli.endpoint.session import EndpointEngine
    from specprefill_cli.engine.local import LocalEngine

EXAMPLE = 'report.pdf "What is the notice period?"'


def document_reader(settings: Settings) -> Callable[..., Collection]:
    """A function that reads documents by name, with these settings."""
    from specprefill_cli.documents.collect import read_collection

    return partial(read_collection, strict=settings.strict, keep=not settings.no_cache)


def read_inputs(documents: Sequence[str], html: Path | None, settings: Settings, notes: Notes) -> Collection:
    """Read the documents. Raises UsageError, before reading anything, if the page (`--html`) cannot be written."""
    if html is not None:
        check_can_write(html, "--html")
    with notes.progress("reading documents") as step:
        collection = document_reader(settings)(documents, step=step)
    if html is not None and any(same_file(html, Path(document.name)) for document in collection.documents):
        raise UsageError(f"--html {html}: this is one of the documents; give another name")
    return collection


def write_page(path: Path, collection: Collection, comparison: Comparison, settings: Settings) -> None:
    """Write the page of a question. Raises SpecprefillError if it cannot be written."""
    from specprefill_cli.prefill.shortlist import shortlist
    from specprefill_cli.reporting.html import render_page

    write_whole(path, render_page(shortlist(collection, comparison.question, settings), comparison))


def new_request(
    command: str, documents: Sequence[str] | None, question: str | None, settings: Settings, **details: Any
) -> Request:
    """Check a command's arguments, and make them a request; `-` reads the question from standard input. Raises UsageError."""
    # Typer takes a single argument as the question, whatever it is.
    if question is None or not documents:
        missing_argument = "documents are" if question and not names_document(question) else "question is"
        raise UsageError(f"{command}: the {missing_argument} missing; for example: specprefill {command} {EXAMPLE}")
    if question == "-":
        if "-" in documents:
            raise UsageError("standard input cannot be both a document and the question; give one of them by name")
        # Replace undecodable characters of a question in another encoding.
        question = sys.stdin.buffer.read().decode(errors="replace")
    clean_question(question)
    if os.path.exists(question):
        cause = "this is a file, but it stands where the question belongs"
        raise UsageError(f"{question}: {cause}; give the question last, in quotes")
    return Request(documents=tuple(documents), question=question, settings=settings, **details)


def names_document(argument: str) -> bool:
    """Whether an argument is standard input, an existing file or folder, or has a known suffix."""
    from specprefill_cli.documents.registry import KNOWN_SUFFIXES

    return argument == "-" or os.path.exists(argument) or argument.lower().endswith(tuple(KNOWN_SUFFIXES))


def open_ready_session(
    variants: Sequence[Settings], notes: Notes, target_weights: bool = True, single: bool = False
) -> "Session":
    """Load the pair and warm it up with each of the variants that will be used.

    target_weights: without them, only the draft runs, in this process alone; single: whether one question follows
    """
    prepare_target(variants[0], notes)
    with notes.progress("loading the models"):
        import_transformers(variants[0].tensor_parallel)
        from specprefill_cli.answering.resolve import loads_draft, resolve_scorer
        from specprefill_cli.answering.session import open_session
        from specprefill_cli.distributed import ALONE

        if target_weights and is_endpoint(variants[0].target):
            from specprefill_cli.endpoint.session import open_endpoint

            session: Session = open_endpoint(variants[0])
        else:
            ranks = None if target_weights else ALONE
            session = open_session(variants[0], any(map(loads_draft, variants)), target_weights, ranks=ranks)
        session.single = single
        for variant in variants if target_weights else ():
            session.warm_up(variant.varied(scorer=resolve_scorer(variant.scorer, session.pair, variant.mode)))
    session.startup_seconds = time.perf_counter() - STARTED
    return session


def open_engine(
    session: "Session", settings: Settings, concurrency: int | None = 1, read: ReadDocuments | None = None
) -> "LocalEngine | EndpointEngine":
    """Open an engine for a session. concurrency: questions at once, None for the engine's default; read: reads documents."""
    if is_endpoint(settings.target):
        from specprefill_cli.endpoint.session import CAPACITY, EndpointEngine

        return EndpointEngine(session, concurrency or CAPACITY, read)
    from specprefill_cli.engine.local import LocalEngine

    return LocalEngine(session, concurrency, read=read)


def prepare_target(settings: Settings, notes: Notes) -> None:
    """Convert a target's file on its first use. Raises SpecprefillError, before importing torch, for a target that is nowhere."""
    pair = chosen_pair(settings)
    target, ref = pair.target, ModelRef(pair.target)
    if ref.kind is Kind.HUB_FILE and may_download(target, settings.offline):
        notes.line(f"{target}: downloading it into the hub's cache once")
        fetch_gguf(target)
    if ref.file is not None:
        import_transformers(settings.tensor_parallel)
        from specprefill_cli.models.machine.placement import choose_placement, stored_placement

        placement = replace(choose_placement(settings.devices), shards=settings.tensor_parallel)
        ref = ModelRef(target, stored_placement(placement, settings.quantization, pair.adapter).packed)
    if ref.conversion is None or ref.conversion.done:
        return
    notes.line(f"{target}: converting its file once; later runs load it in a second")
    with notes.progress("converting the target") as update:
        ref.source(lambda percent, text: update(f"{text} ({percent} %)"))


@dataclass(frozen=True)
class EngineOpener:
    """Opens the engine of the rows.

    documents: of rows without their own; collection: these, already read; None without documents
    concurrency: rows that an engine answers at once; None: the engine's default
    folder: base of relative paths
    """

    settings: Settings
    documents: tuple[str, ...]
    collection: Collection | None
    concurrency: int | None
    folder: str = field(default_factory=os.getcwd)

    def open_workers(self, workers: int | None, ray: str | None, notes: Notes) -> Engine:
        from specprefill_cli.batching.ray_engine import connect_to_ray

        gpus = 0 if self.settings.devices == "cpu" else self.settings.tensor_parallel
        with notes.progress("starting the workers"):
            # A single row at a time: a row that kills its worker then costs no other row an attempt.
            return connect_to_ray(self, ray, workers, gpus, self.concurrency or 1)

    def __call__(self) -> Engine:
        os.chdir(self.folder)
        reuse_freed_memory()
        bound_spinning(os.environ)
        return self.open(Notes(quiet=True))

    def open(self, notes: Notes, no_server: bool = True) -> Engine:
        """Use the running server if it can answer the rows, or load the models and warm them up."""
        # What can be read only here was read already, and only once.
        if not no_server and not any(map(only_read_here, self.documents)):
            from specprefill_cli.serving.control import server_for

            if server := server_for(self.settings, notes.line):
                return replace(server, capacity=self.concurrency or server.capacity)
        session = open_ready_session([self.settings], notes)
        from specprefill_cli.batching.rows import read_once
        from specprefill_cli.engine.local import LocalEngine
        from specprefill_cli.prefill.prefix_cache import document_cache

        session = session.with_cache(document_cache(self.settings.memory_cache, session.pair))

        def read(documents: tuple[str, ...]) -> Collection:
            if self.collection is not None and documents == self.documents:
                return self.collection
            return read_once(documents, self.settings.strict, not self.settings.no_cache)

        engine = open_engine(session, self.settings, self.concurrency, read)
        if isinstance(engine, LocalEngine):
            engine.thread.start()
        return engine

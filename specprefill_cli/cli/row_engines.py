"""Engines for the rows of a batch: in this process, a server, an endpoint, or Ray actors."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from specprefill_cli.cli.console import Notes
from specprefill_cli.cli.inputs import document_reader
from specprefill_cli.cli.loading import find_server, open_engine, open_ready_session
from specprefill_cli.distributed.launch import in_run
from specprefill_cli.documents.collect import STANDARD_INPUT
from specprefill_cli.errors import UsageError
from specprefill_cli.models.memory import bound_spinning, keep_freed_memory
from specprefill_cli.models.refs import is_endpoint
from specprefill_cli.settings import Settings

if TYPE_CHECKING:
    from specprefill_cli.batching.loop import RowEngine
    from specprefill_cli.documents.document import Collection

# Ray's addresses of a cluster: the one that this machine belongs to, or host and port.
ADDRESS = re.compile(r"auto|[^\s/]+:\d+")


@dataclass(frozen=True, kw_only=True)
class RowOptions:
    """Options of `batch` about where rows are answered.

    names, collection: documents of rows that name none, and what they hold; None without any
    folder: the working directory; document paths are relative to it
    workers, ray: Ray actors, and their cluster; None for both: this process
    concurrency: rows that one engine answers at once; None: as many as pay; cache_limit: of the folder, in GiB
    """

    settings: Settings
    names: tuple[str, ...]
    collection: Collection | None
    folder: str
    workers: int | None = None
    ray: str | None = None
    concurrency: int | None = None
    cache_dir: Path | None = None
    cache_limit: float = 8.0

    def __call__(self) -> RowEngine:
        """Open the engine of a worker. Raises SpecprefillError where a model cannot be loaded."""
        os.chdir(self.folder)
        keep_freed_memory()
        bound_spinning(os.environ)
        return self.open(Notes(quiet=True))

    def open(self, notes: Notes) -> RowEngine:
        """Load the models, and warm them up."""
        settings = self.settings
        session = open_ready_session([settings], notes)
        from specprefill_cli.batching.engine_rows import EngineRows, read_once
        from specprefill_cli.engine.local import LocalEngine
        from specprefill_cli.prefill.disk_cache import DiskCache
        from specprefill_cli.prefill.prefix_cache import document_cache

        store = DiskCache(self.cache_dir, int(self.cache_limit * 2**30), notes.warn) if self.cache_dir else None
        session = session.with_cache(document_cache(settings.memory_cache, session.pair, store))
        read = read_once(document_reader(settings))
        engine = open_engine(session, settings, self.concurrency, read)
        if isinstance(engine, LocalEngine):
            engine.start()
        return EngineRows(engine, settings, () if self.collection is None else self.collection)


def check_workers(settings: Settings, workers: int | None, ray: str | None) -> None:
    """Raises UsageError for options that exclude each other."""
    if (workers or ray) and in_run():
        raise UsageError("--workers and --ray start processes, and torchrun did already; leave out one of them")
    if (workers or ray) and is_endpoint(settings.target):
        raise UsageError("--workers and --ray start processes, and one is enough for an endpoint; give --concurrency N")
    if ray is not None and not ADDRESS.fullmatch(ray):
        raise UsageError(f"--ray {ray}: give auto on a machine of the cluster, or HOST:PORT")


def open_row_engine(options: RowOptions, notes: Notes, no_server: bool) -> RowEngine:
    """The engine for these options. Raises SpecprefillError where it cannot be opened."""
    settings = options.settings
    if options.workers is not None or options.ray is not None:
        from specprefill_cli.batching.ray_rows import connect

        gpus = 0 if settings.devices == "cpu" else settings.tensor_parallel
        with notes.progress("starting the workers"):
            # With one row at a time, a row that ends its worker costs no other row an attempt.
            return connect(options, options.ray, options.workers, gpus, options.concurrency or 1)
    # A server keeps no files, and standard input is here.
    is_local = no_server or options.cache_dir is not None or STANDARD_INPUT in options.names
    server = None if is_local else find_server(settings, notes)
    if server is None:
        return options.open(notes)
    from specprefill_cli.batching.engine_rows import EngineRows

    engine = replace(server, capacity=options.concurrency or server.capacity)
    return EngineRows(engine, settings, options.names)

"""`specprefill cache`: what is kept on disk, and its removal."""

from __future__ import annotations

import os
import shutil
import sys
from datetime import date
from typing import Annotated

import typer

from specprefill_cli.cli.console import console, print_json
from specprefill_cli.cli.options import Json
from specprefill_cli.disk_cache import DiskCache, Entry
from specprefill_cli.errors import UsageError
from specprefill_cli.models.sources.conversion import converted_models, models_folder
from specprefill_cli.reporting.table import plain_table
from specprefill_cli.reporting.text import plain

ALL = "all"
Remove = Annotated[
    str | None,
    typer.Option(
        help="Remove what is kept of a file, a folder or a model; `all` removes everything.", show_default="none"
    ),
]


def cache(remove: Remove = None, json: Json = False) -> None:
    """List what is kept on disk, with its size and last use: texts of documents by folder, and converted models.

    Beyond 1 GiB, older documents make room for newer ones. A converted model stays until it is removed.

    Examples:
      specprefill cache

      specprefill cache --remove all
    """
    folders: dict[str, list[Entry]] = {}
    with DiskCache() as documents:
        if remove is not None:
            remove_kept(documents, remove)
        for entry in documents.entries():
            folders.setdefault(os.path.dirname(entry.source), []).append(entry)
    kept = [("documents", folder, entries) for folder, entries in folders.items()]
    kept += [("model", entry.source, [entry]) for entry in converted_models()]
    rows, table = [], plain_table("kind", "source", "files", "MB", "last used")
    for kind, source, entries in kept:
        used = date.fromtimestamp(max(entry.used for entry in entries)).isoformat()
        size = sum(entry.size for entry in entries)
        rows.append({"kind": kind, "source": source, "files": len(entries), "bytes": size, "last_used": used})
        table.add_row(kind, plain(source), f"{len(entries):,}", f"{size / 1e6:,.1f}", used)
    if json:
        print_json({"kept": rows})
    else:
        console(sys.stdout).print(table)


def remove_kept(documents: DiskCache, name: str) -> None:
    """Remove what is kept of a document, a folder of them, or a model. Raises UsageError where nothing is."""
    place = os.path.realpath(name)
    sources = [entry.source for entry in documents.entries()]
    sources = [source for source in sources if name == ALL or f"{source}{os.sep}".startswith(os.path.join(place, ""))]
    for source in sources:
        documents.run("DELETE FROM entries WHERE source = ?", source)
    models = [entry.source for entry in converted_models() if name in (ALL, entry.source)]
    for model in models:
        shutil.rmtree(models_folder() / model, ignore_errors=True)
    if name != ALL and not (sources or models):
        raise UsageError(f"--remove {name}: nothing is kept of it; `specprefill cache` lists what is kept")

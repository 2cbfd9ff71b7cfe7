"""`specprefill doctor`, `pairs`, `config` and `cache`: the installation, the named pairs, settings, and what is kept on disk."""

import os
import shutil
import sys
from dataclasses import asdict
from datetime import date
from typing import Annotated, Any

import typer

from specprefill_cli.caches import DiskCache, Entry
from specprefill_cli.cli.console import Notes, console, print_json
from specprefill_cli.cli.options import Json, sourced_values, with_settings
from specprefill_cli.diagnostics import DEFAULT_TOKENS, State, diagnose
from specprefill_cli.errors import UsageError
from specprefill_cli.models.sources.conversion import converted_models, models_folder
from specprefill_cli.models.sources.pairs import PAIRS
from specprefill_cli.reporting.table import plain_table
from specprefill_cli.reporting.text import plain
from specprefill_cli.settings import AUTO, MODELS, SETTINGS, Settings, config_path

STYLES = {State.OK: "green", State.LIMITED: "yellow", State.NO: "yellow", State.BROKEN: "bold red"}


@with_settings("models", "prompt", without=("tensor_parallel",))
def doctor(
    *,
    settings: Settings,
    tokens: Annotated[
        int, typer.Option(min=1, help="Prompt length to count memory for.", rich_help_panel=MODELS)
    ] = DEFAULT_TOKENS,
    json: Json = False,
) -> None:
    """Check versions, devices, the memory for a pair, and whether it runs here. Download no weights.

    Exit with 1 if something necessary is broken. `limited` and `no` are information only.

    Examples:
      specprefill doctor --pair qwen2.5-7b --tokens 32768

      specprefill doctor --json | jq '.checks[] | select(.state != "ok")'
    """
    with Notes(json).progress("checking"):
        checks = diagnose(settings, tokens)
    broken = any(check.state is State.BROKEN for check in checks)
    if json:
        print_json({"ok": not broken, "checks": [asdict(check) for check in checks]})
    else:
        table = plain_table()
        table.columns[1].no_wrap = True
        table.add_column(overflow="fold")
        for check in checks:
            table.add_row(plain(check.name), plain(check.state.value, STYLES[check.state]), plain(check.detail))
        console(sys.stdout).print(table)
    if broken:
        raise typer.Exit(1)


def pairs(json: Json = False) -> None:
    """List the named pairs of draft and target.

    Examples:
      specprefill pairs --json | jq -r '.pairs[].target'
    """
    if json:
        print_json({"pairs": [asdict(pair) for pair in PAIRS.values()]})
        return
    table = plain_table("pair", "draft", "target", "note")
    for pair in PAIRS.values():
        table.add_row(pair.name, pair.draft, pair.target, pair.note)
    console(sys.stdout).print(table)


config = typer.Typer(no_args_is_help=True)


@config.callback()
def group() -> None:
    """Show settings. Defaults < config file < SPECPREFILL_* variables < flags.

    Examples:
      specprefill config show
    """


@config.command("show")
def show(json: Json = False) -> None:
    """Show the path of the config file, and every setting with its value and source: default, file or environment.

    Write a setting into the config file as a line such as `pair = "qwen2.5-7b"`.

    Examples:
      specprefill config show --json | jq '.settings[].value'
    """
    values = sourced_values()
    if json:
        rows = [{"name": name} | asdict(sourced) for name, sourced in values.items()]
        print_json({"path": str(config_path()), "settings": rows})
        return
    table = plain_table("setting", "value", "from")
    for name, sourced in values.items():
        place = f"{sourced.source} ({sourced.place})" if sourced.place else sourced.source
        table.add_row(name, plain(as_written(name, sourced.value)), plain(place))
    console(sys.stdout).print(table)
    print(f"config file: {config_path()}")


def as_written(name: str, value: Any) -> str:
    """Write a value as on the command line; a dash for a setting without a value."""
    if value is None:
        return AUTO if AUTO in SETTINGS[name].words else "-"
    return str(value).lower() if isinstance(value, bool) else str(value)


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

"""`specprefill config`: the settings, their values, and the sources of the values."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from specprefill_cli.cli.console import console, print_json
from specprefill_cli.cli.options import Json, choices_of, setting_names
from specprefill_cli.cli.sources import set_value, sourced_values
from specprefill_cli.declarations import check_choice
from specprefill_cli.reporting.table import plain_table
from specprefill_cli.reporting.text import plain
from specprefill_cli.settings import AUTO, SETTINGS, config_path

app = typer.Typer(no_args_is_help=True)


@app.callback()
def group() -> None:
    """Show and change settings. Defaults < config file < SPECPREFILL_* variables < flags.

    Examples:
      specprefill config set pair qwen3-8b

      specprefill config show
    """


@app.command("show")
def show(json: Json = False) -> None:
    """Show the path of the config file, and every setting with its value and source: default, file or environment.

    Examples:
      specprefill config show

      specprefill config show --json | jq '.settings[] | select(.source == "file")'
    """
    from dataclasses import asdict

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


@app.command("set")
def set_(
    name: Annotated[str, typer.Argument(help="A setting's name, as in `config show`.", autocompletion=setting_names)],
    value: Annotated[str, typer.Argument(help="Its new value.", show_default=False)],
) -> None:
    """Write a setting into the config file; everything else in it stays. An editor can change the file too.

    Examples:
      specprefill config set keep 0.2

      specprefill config set pair qwen2.5-7b
    """
    name = name.replace("-", "_")
    if name in SETTINGS and choices_of(SETTINGS[name]):
        check_choice(value, choices_of(SETTINGS[name]), f"config set: {name}")
    file = config_path()
    stored = set_value(file, name, value)
    print(f"{name} = {as_written(name, stored)} in {file}", file=sys.stderr)
    variable = SETTINGS[name].variable
    if variable in os.environ:
        print(f"but {variable} is set and wins over the file", file=sys.stderr)


def as_written(name: str, value: Any) -> str:
    """Write a value as on the command line; a dash for a setting without a value."""
    if value is None:
        return AUTO if AUTO in SETTINGS[name].words else "-"
    return str(value).lower() if isinstance(value, bool) else str(value)

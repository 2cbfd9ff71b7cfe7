"""`specprefill config`: where settings stand, and what they are."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from specprefill_cli.cli import completion, options
from specprefill_cli.cli.console import console, print_json
from specprefill_cli.errors import UsageError

app = typer.Typer(no_args_is_help=True)

Name = Annotated[
    str, typer.Argument(help="A setting's name, as in `config show`.", autocompletion=completion.setting_names)
]


@app.callback()
def group() -> None:
    """Show and change settings. Defaults < config file < SPECPREFILL_* variables < flags.

    Examples:
      specprefill config set pair qwen3-8b

      specprefill config show
    """


@app.command("path")
def path() -> None:
    """Print the path of the config file, whether it exists or not.

    Example:
      $EDITOR "$(specprefill config path)"
    """
    from specprefill_cli.settings import config_path

    print(config_path())


@app.command("show")
def show(json: options.Json = False) -> None:
    """Show every setting, its value, and where that comes from: default, file or environment.

    Examples:
      specprefill config show

      specprefill config show --json | jq -r '.settings[] | select(.source != "default") | .name'
    """
    from dataclasses import asdict

    from specprefill_cli.settings import config_path, sourced_values

    found = sourced_values()
    if json:
        rows = [{"name": name} | asdict(sourced) for name, sourced in found.items()]
        print_json({"path": str(config_path()), "settings": rows})
        return
    from rich.table import Table

    from specprefill_cli.reporting.safe import plain

    table = Table("setting", "value", "from", box=None, padding=(0, 2, 0, 0))
    for name, sourced in found.items():
        place = f"{sourced.source} ({sourced.place})" if sourced.place else sourced.source
        table.add_row(name, plain(word(name, sourced.value)), plain(place))
    console(sys.stdout).print(table)


@app.command("set")
def set_(name: Name, value: Annotated[str, typer.Argument(help="Its new value.", show_default=False)]) -> None:
    """Write a setting into the config file; everything else in it stays.

    Examples:
      specprefill config set keep 0.2

      specprefill config set mode select
    """
    name = name.replace("-", "_")
    check_choice(name, value)
    from specprefill_cli.cli.config_file import set_value
    from specprefill_cli.settings import config_path, variable_of

    file = config_path()
    stored = set_value(file, name, value)
    print(f"{name} = {word(name, stored)} in {file}", file=sys.stderr)
    if variable_of(name) in os.environ:
        print(f"but {variable_of(name)} is set and wins over the file", file=sys.stderr)


@app.command("unset")
def unset(name: Name) -> None:
    """Take a setting out of the config file, so that its default counts again.

    Example:
      specprefill config unset keep
    """
    from specprefill_cli.cli.config_file import unset_value
    from specprefill_cli.settings import config_path

    unset_value(config_path(), name.replace("-", "_"))


def word(name: str, value: Any) -> str:
    """A value as it is written on the command line; a dash for one that is not set."""
    if value is None:
        return "auto" if name == "keep" else "-"
    return str(value).lower() if isinstance(value, bool) else str(value)


def check_choice(name: str, value: str) -> None:
    """Raises UsageError for a setting with names that does not have this one."""
    from specprefill_cli.models.pairs import PAIRS

    choices = {
        "mode": completion.MODES,
        "scorer": completion.SCORERS,
        "dtype": completion.DTYPES,
        "quantization": completion.QUANTIZATIONS,
        "proposer": completion.PROPOSERS,
        "pair": tuple(PAIRS),
    }
    if name in choices and value not in choices[name]:
        raise UsageError(f"config set {name}: '{value}' is unknown; use one of {', '.join(choices[name])}")

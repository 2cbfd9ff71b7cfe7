"""`specprefill doctor` and `specprefill pairs`: checks of the installation, and the named pairs."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from specprefill_cli.cli.console import Notes, console, print_json
from specprefill_cli.cli.options import Json, with_settings
from specprefill_cli.diagnostics import DEFAULT_TOKENS, State, diagnose
from specprefill_cli.models.sources.pairs import PAIRS
from specprefill_cli.reporting.safe import plain
from specprefill_cli.reporting.table import plain_table
from specprefill_cli.settings import MODELS, Settings

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
      specprefill doctor

      specprefill doctor --pair qwen2.5-7b --tokens 32768

      specprefill doctor --draft ./small --target ./checkpoint

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
      specprefill pairs

      specprefill config set pair qwen2.5-7b

      specprefill pairs --json | jq -r '.pairs[].target'
    """
    if json:
        print_json({"pairs": [asdict(pair) for pair in PAIRS.values()]})
        return
    table = plain_table("pair", "draft", "target", "note")
    for pair in PAIRS.values():
        table.add_row(pair.name, pair.draft, pair.target, pair.note)
    console(sys.stdout).print(table)

"""`specprefill doctor`: whether everything is in place."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from specprefill_cli.cli.console import Notes, console, print_json
from specprefill_cli.cli.options import Given, Json, with_settings
from specprefill_cli.cli.sources import merge_settings
from specprefill_cli.errors import UsageError
from specprefill_cli.settings import MODELS, Settings


@with_settings("models", without=("tensor_parallel", "offline"))
def doctor(
    *,
    given: Given,
    tokens: Annotated[
        int, typer.Option(min=1, help="Length of the prompt for which memory is counted.", rich_help_panel=MODELS)
    ] = 8_192,
    json: Json = False,
) -> None:
    """Check versions, devices, memory for a pair, folders, and what ships with the package. Downloads nothing.

    Exit code 1 when something that is needed is broken; `limited` and `no` are for your information.

    Examples:
      specprefill doctor

      specprefill doctor --pair qwen2.5-7b --tokens 32768

      specprefill doctor --json | jq -r '.checks[] | select(.state != "ok") | .detail'
    """
    from specprefill_cli.diagnostics.doctor import diagnose
    from specprefill_cli.diagnostics.finding import any_broken

    problem = None
    try:
        settings = merge_settings(given)
    except UsageError as error:
        # A broken config file is one finding among others.
        settings = Settings(**given)
        problem = str(error)
    with Notes(json).progress("checking"):
        checks = diagnose(settings, tokens, problem)
    from specprefill_cli.reporting.findings import check_record, check_table

    if json:
        print_json(check_record(checks))
    else:
        console(sys.stdout).print(check_table(checks))
    if any_broken(checks):
        raise typer.Exit(1)

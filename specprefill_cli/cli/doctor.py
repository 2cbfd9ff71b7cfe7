"""`specprefill doctor`: whether everything is in place."""

from __future__ import annotations

import sys
from dataclasses import fields
from typing import Annotated

import typer

from specprefill_cli.cli import options
from specprefill_cli.cli.console import Notes, console, print_json


def doctor(
    pair: options.Pair = None,
    draft: options.Draft = None,
    target: options.Target = None,
    devices: options.Devices = None,
    dtype: options.Dtype = None,
    quantization: options.Quantization = None,
    tokens: Annotated[
        int,
        typer.Option(min=1, help="Length of the prompt for which memory is counted.", rich_help_panel=options.MODELS),
    ] = 8_192,
    json: options.Json = False,
) -> None:
    """Check versions, devices, memory for a pair, folders, and what ships with the package. Downloads nothing.

    Exit code 1 when something that is needed is broken; `limited` and `no` are for your information.

    Examples:
      specprefill doctor

      specprefill doctor --pair qwen2.5-7b --tokens 32768

      specprefill doctor --json | jq -r '.checks[] | select(.state != "ok") | .detail'
    """
    flags = locals()
    from specprefill_cli.diagnostics.doctor import diagnose
    from specprefill_cli.diagnostics.finding import any_broken
    from specprefill_cli.errors import UsageError
    from specprefill_cli.settings import Settings

    problem = None
    try:
        settings = options.settings_from(flags)
    except UsageError as error:
        # A broken config file must not keep the rest from being looked at.
        known = {field.name for field in fields(Settings)}
        settings = Settings(**{name: value for name, value in flags.items() if name in known and value is not None})
        problem = str(error)
    with Notes(json).progress("looking around"):
        checks = diagnose(settings, tokens, problem)
    from specprefill_cli.reporting.findings import check_record, check_table

    if json:
        print_json(check_record(checks))
    else:
        console(sys.stdout).print(check_table(checks))
    if any_broken(checks):
        raise typer.Exit(1)

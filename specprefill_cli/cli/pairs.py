"""`specprefill pairs`: the named pairs."""

from __future__ import annotations

import sys
from dataclasses import asdict

from specprefill_cli.cli.console import console, print_json
from specprefill_cli.cli.options import Json
from specprefill_cli.models.pairs import PAIRS
from specprefill_cli.reporting.table import plain_table


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

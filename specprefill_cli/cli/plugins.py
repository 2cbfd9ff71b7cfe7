"""`specprefill plugins`: the modes and scorers that other packages add."""

from __future__ import annotations

import sys
from dataclasses import asdict

from specprefill_cli.cli.console import Notes, console, plain_table, print_json
from specprefill_cli.cli.options import Json
from specprefill_cli.prefill.registry import MODES, SCORERS
from specprefill_cli.reporting.safe import plain


def plugins(json: Json = False) -> None:
    """List the modes and scorers that other installed packages add, and whether they can be loaded.

    A package adds them through the entry-point groups `specprefill.modes` and `specprefill.scorers`.

    Examples:
      specprefill plugins

      specprefill plugins --json | jq -r '.plugins[].name'
    """
    rows = [(registry.kind, plugin) for registry in (MODES, SCORERS) for plugin in registry.plugins()]
    notes = Notes(quiet=False)
    for _, plugin in rows:
        if plugin.error is not None:
            notes.warn(plugin.error)
    if json:
        print_json({"plugins": [{"kind": kind, **asdict(plugin)} for kind, plugin in rows]})
    elif not rows:
        notes.tell("no installed package adds a mode or a scorer")
    else:
        table = plain_table("plugin", "kind", "source", "state")
        for kind, plugin in rows:
            table.add_row(plain(plugin.name), kind, plain(plugin.source), "ok" if plugin.error is None else "broken")
        console(sys.stdout).print(table)

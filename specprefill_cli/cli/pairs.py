"""`specprefill pairs`: the named pairs."""

from __future__ import annotations

import sys

from specprefill_cli.cli.console import console


def pairs() -> None:
    """List the named pairs of draft and target.

    Example:

      specprefill ask report.pdf "Who signed it?" --pair qwen2.5-7b
    """
    from rich.table import Table

    from specprefill_cli.models.pairs import PAIRS

    table = Table("pair", "draft", "target", "note", box=None, padding=(0, 2, 0, 0))
    for pair in PAIRS.values():
        table.add_row(pair.name, pair.draft, pair.target, pair.note)
    console(sys.stdout).print(table)

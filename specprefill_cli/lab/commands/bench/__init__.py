"""`specprefill bench`: speed, measured in one run. Each command has a module."""

import typer

from specprefill_cli.lab.commands.bench.decode import decode
from specprefill_cli.lab.commands.bench.needles import needles
from specprefill_cli.lab.commands.bench.prefill import peer, prefill
from specprefill_cli.lab.commands.bench.recall import recall
from specprefill_cli.lab.commands.bench.throughput import throughput

app = typer.Typer(no_args_is_help=True)


@app.callback()
def group() -> None:
    """Measure speed on this machine.

    Example:
      specprefill bench prefill --lengths 4096,8192 --keep 0.1,0.2
    """


for command in (prefill, decode, throughput, needles, recall, peer):
    app.command(command.__name__)(command)

"""`specprefill bench decode`: tokens a second."""

from __future__ import annotations

from typing import Annotated

import typer

from specprefill_cli.cli.console import Notes
from specprefill_cli.cli.options import Given, Json, Quiet, split, with_settings
from specprefill_cli.lab.commands.bench.session import Shapes, open_measured_session
from specprefill_cli.lab.commands.lists import SPECULATE_LIST
from specprefill_cli.lab.commands.options import Repeat
from specprefill_cli.settings import Settings


@with_settings("models", "prefill", "decoding", without=("max_new_tokens",), lists=(SPECULATE_LIST,))
def decode(
    length: Annotated[int, typer.Option(min=1, help="Prompt length in tokens.")] = 2_048,
    tasks: Annotated[
        str,
        typer.Option(
            help="Tasks, comma-separated: quote (repeat the document, ignoring stop tokens) and short (questions)."
        ),
    ] = "quote,short",
    repeat: Repeat = 5,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Tokens of each quote.")] = 96,
    shapes: Shapes = None,
    *,
    settings: Settings,
    given: Given,
    speculates: list[str | int],
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure tokens a second with speculative and plain decoding: medians of rounds measured in turns.

    Example:
      specprefill bench decode --speculate auto,4 --repeat 5 --json
    """
    settings = settings.varied(max_new_tokens=max_new_tokens)
    names = split(tasks, "--tasks")
    from specprefill_cli.decoding.speculation import adapts
    from specprefill_cli.lab.benchmarks.decode import bench_decode, check_tasks
    from specprefill_cli.lab.tables import DECODE, show_benchmark

    check_tasks(names)
    variants = [settings.varied(speculate=pace) for pace in speculates]
    session = open_measured_session(settings, variants, shapes, given)
    # The warm-up of adaptive speculation measures what a pass costs.
    session.warm_up(next(filter(adapts, variants), variants[0]))
    with Notes(quiet).progress("measuring") as update:
        rows = bench_decode(session, length, names, speculates, repeat, settings, update)
    show_benchmark(rows, DECODE, json)

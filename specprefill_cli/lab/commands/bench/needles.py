"""`specprefill bench needles`: one sentence in documents of any length."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specprefill_cli.cli.console import Notes
from specprefill_cli.cli.options import Json, Quiet, with_settings
from specprefill_cli.files import write_whole
from specprefill_cli.lab.commands.lists import whole_numbers
from specprefill_cli.lab.commands.options import Lengths, check_plot, plot_option
from specprefill_cli.settings import OFF, Settings


@with_settings("models", "prefill", "decoding", without=("mode", "keep", "max_new_tokens"))
def needles(
    text: Annotated[Path, typer.Option(help="File with the prose, in any format that can be asked about.")],
    lengths: Lengths = "32768,131072",
    limit: Annotated[int, typer.Option(min=1, help="Questions of each length.")] = 10,
    kept_tokens: Annotated[int, typer.Option(min=64, help="Tokens of the prompt that the target computes.")] = 2_000,
    plot: Annotated[Path | None, plot_option("time against length")] = None,
    *,
    settings: Settings,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Ask for one sentence hidden in documents of any length: count right answers, measure TTFT and memory.

    Example:
      specprefill bench needles --text books.txt --lengths 32768,131072,1000000 --limit 20
    """
    check_plot(plot)
    settings = settings.varied(mode="select", max_new_tokens=16, passages=OFF)
    sizes = whole_numbers(lengths, "--lengths")
    from specprefill_cli.answering.session import open_session
    from specprefill_cli.documents import read_collection
    from specprefill_cli.lab.benchmarks.needles import bench_needles, needle_plot
    from specprefill_cli.lab.tables import NEEDLES, show_benchmark

    prose = read_collection([str(text)], strict=True).text
    session = open_session(settings)
    with Notes(quiet).progress("measuring") as update:
        rows = bench_needles(session, prose, sizes, limit, kept_tokens, settings, update)
    show_benchmark(rows, NEEDLES, json)
    if plot is not None:
        write_whole(plot, needle_plot(rows))

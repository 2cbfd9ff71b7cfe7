"""`specprefill bench throughput`: questions a second, of a session or of a running server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specprefill_cli.cli.console import Notes
from specprefill_cli.cli.options import MODE_LIST, Given, Json, Quiet, concurrency_of, split, with_settings
from specprefill_cli.errors import UsageError
from specprefill_cli.files import write_whole
from specprefill_cli.lab.commands.bench.session import Shapes, open_measured_session
from specprefill_cli.lab.commands.lists import KEEP_LIST
from specprefill_cli.lab.commands.options import check_plot, plot_option
from specprefill_cli.settings import Settings


@with_settings("models", "prefill", "decoding", without=("max_new_tokens",), lists=(MODE_LIST, KEEP_LIST))
def throughput(
    length: Annotated[int, typer.Option(min=1, help="Prompt length in tokens.")] = 8_192,
    limit: Annotated[float, typer.Option(min=0.001, help="Highest median TTFT, in seconds.")] = 5.0,
    requests: Annotated[int, typer.Option(min=2, help="Questions at each rate.")] = 24,
    concurrency: Annotated[str, typer.Option(help="Questions at once, comma-separated; auto is allowed.")] = "1,auto",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer in tokens.")] = 32,
    plot: Annotated[Path | None, plot_option("TTFT against the rate")] = None,
    shapes: Shapes = None,
    server: Annotated[
        bool,
        typer.Option(
            "--server", help="Put load on the running server instead, with questions about the sample documents."
        ),
    ] = False,
    clients: Annotated[int, typer.Option(min=1, help="With --server: clients that ask at the same time.")] = 64,
    seconds: Annotated[float, typer.Option(min=1, help="With --server: seconds of load.")] = 60.0,
    *,
    settings: Settings,
    given: Given,
    modes: list[str],
    keeps: list[float | None],
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the highest rate of questions: raise it until the median TTFT exceeds a limit or the queue grows.

    Questions arrive at random (a Poisson process) and share no work. The table has the largest rate that held, TTFT from
    arrival to first text, and the gaps between pieces of text, at that rate.

    Examples:
      specprefill bench throughput --modes full,select --keep 0.1,0.2,0.3 --plot throughput.svg

      specprefill bench throughput --server --clients 64 --seconds 300
    """
    if server:
        if given or plot is not None or shapes is not None:
            raise UsageError("--server measures the server as it was started; give it only --clients and --seconds")
        show_server_load(clients, seconds, json, quiet)
        return
    settings = settings.varied(max_new_tokens=max_new_tokens)
    check_plot(plot)
    concurrencies = [concurrency_of(part, "--concurrency") for part in split(concurrency, "--concurrency")]
    from specprefill_cli.lab.benchmarks.throughput import bench_throughput, throughput_plot
    from specprefill_cli.lab.evaluation.runner import configurations
    from specprefill_cli.lab.tables import THROUGHPUT, show_benchmark

    cases = configurations(modes, keeps, [settings.scorer])
    session = open_measured_session(settings, [case.settings(settings) for case in cases], shapes, given)
    cases = [case.named(session) for case in cases]
    with Notes(quiet).progress("measuring") as update:
        rows = bench_throughput(session, length, cases, concurrencies, requests, limit, settings, update)
    show_benchmark(rows, THROUGHPUT, json)
    if plot is not None:
        write_whole(plot, throughput_plot(rows, limit))


def show_server_load(clients: int, seconds: float, json: bool, quiet: bool) -> None:
    """Load the running server and print its figures. Raises SpecprefillError without one, UsageError without its extra."""
    from specprefill_cli.cli.serve import check_extra

    check_extra("--server")
    from specprefill_cli.lab.benchmarks.server_load import bench_server
    from specprefill_cli.lab.tables import SERVER, show_benchmark

    with Notes(quiet).progress(f"{clients:,} clients ask for {seconds:g} s"):
        rows = bench_server(clients, seconds)
    show_benchmark(rows, SERVER, json)

"""`specprefill bench`: speed, measured in one run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from specprefill_cli.cli import completion, options
from specprefill_cli.cli.console import Notes, console
from specprefill_cli.cli.evaluate import ratios, split
from specprefill_cli.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from specprefill_cli.benchmarks.prefill import BenchRow

app = typer.Typer(no_args_is_help=True)


@app.callback()
def group() -> None:
    """Measure speed on this machine.

    Example:

      specprefill bench prefill --lengths 4096,8192 --keep 0.1,0.2
    """


@app.command("prefill")
def prefill(
    lengths: Annotated[str, typer.Option(help="Prompt lengths in tokens, with commas.")] = "2048,8192",
    keep: Annotated[str | None, typer.Option(help="Keep ratios, with commas.")] = None,
    modes: Annotated[
        str, typer.Option(help="Modes, with commas.", autocompletion=completion.list_of(*completion.MODES))
    ] = "full,select",
    repeat: Annotated[int, typer.Option(min=1, help="Measured rounds; one more warms up.")] = 5,
    scorer: options.Scorer = None,
    look_ahead: options.LookAhead = None,
    chunk_size: options.ChunkSize = None,
    prefill_chunk: options.PrefillChunk = None,
    prompt: options.Prompt = None,
    pair: options.Pair = None,
    draft: options.Draft = None,
    target: options.Target = None,
    devices: options.Devices = None,
    dtype: options.Dtype = None,
    offline: options.Offline = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Time to first token by mode, length and keep ratio: medians, by phase, with the speedup over full prefill.

    Example:

      specprefill bench prefill --lengths 4096,8192 --keep 0.1,0.2 --repeat 5 --json
    """
    flags = {name: value for name, value in locals().items() if name != "keep"}
    settings = options.settings_from({**flags, "max_new_tokens": 1})
    sizes = [whole_number(text) for text in split(lengths)]
    from specprefill_cli.benchmarks.prefill import bench_prefill, host, versions
    from specprefill_cli.evaluation.runs import configurations
    from specprefill_cli.reporting.jsonl import line
    from specprefill_cli.session import check_names, needs_draft, open_session

    wanted = configurations(split(modes), ratios(keep, settings), [settings.scorer])
    for configuration in wanted:
        check_names(configuration.settings(settings))
    notes = Notes(quiet)
    session = open_session(
        settings, draft=any(needs_draft(configuration.settings(settings)) for configuration in wanted)
    )
    with notes.progress("measuring") as update:
        rows = bench_prefill(session, sizes, wanted, repeat, settings, update)
    if json:
        from dataclasses import asdict

        print(
            line({"schema": 1, "rows": [asdict(row) for row in rows], "host": host(), "versions": versions()}),
            flush=True,
        )
    else:
        console(sys.stdout).print(bench_table(rows))


def whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise UsageError(f"--lengths {text}: not a whole number") from error


def bench_table(rows: list[BenchRow]) -> Table:
    from rich.table import Table

    from specprefill_cli.reporting.table import phase_text, seconds

    table = Table("tokens", "mode", "keep", "TTFT", "x full", "peak memory", "phases", box=None)
    for row in rows:
        table.add_row(
            f"{row.length:,}",
            row.mode,
            "" if row.mode == "full" else "auto" if row.keep is None else f"{row.keep:g}",
            seconds(row.ttft_seconds),
            "" if row.speedup is None else f"{row.speedup:.2f}",
            "" if row.peak_memory_bytes is None else f"{row.peak_memory_bytes / 2**20:,.0f} MiB",
            phase_text(row.phases),
        )
    return table

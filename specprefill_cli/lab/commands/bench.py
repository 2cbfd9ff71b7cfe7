"""`specprefill bench`: speed, measured in one run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specprefill_cli.cli import completion, options
from specprefill_cli.cli.console import Notes, console, print_json
from specprefill_cli.cli.lists import ratios, split, whole_number, whole_numbers
from specprefill_cli.errors import UsageError
from specprefill_cli.settings import AUTO

if TYPE_CHECKING:
    from rich.table import Table

    from specprefill_cli.lab.benchmarks.decode import DecodeRow
    from specprefill_cli.lab.benchmarks.peers import Peer
    from specprefill_cli.lab.benchmarks.prefill import BenchRow
    from specprefill_cli.models.loading import LoadedPair

app = typer.Typer(no_args_is_help=True)

Lengths = Annotated[str, typer.Option(help="Prompt lengths in tokens, comma-separated.")]
KeepList = Annotated[str | None, typer.Option(help="Keep ratios, comma-separated.")]
Modes = Annotated[
    str, typer.Option(help="Modes, comma-separated.", autocompletion=completion.list_of(*completion.MODES))
]
Repeat = Annotated[int, typer.Option(min=1, help="Number of measured rounds, after one warm-up round.")]


@app.callback()
def group() -> None:
    """Measure speed on this machine.

    Example:
      specprefill bench prefill --lengths 4096,8192 --keep 0.1,0.2
    """


@app.command("prefill")
def prefill(
    lengths: Lengths = "2048,8192",
    keep: KeepList = None,
    modes: Modes = "full,select",
    repeat: Repeat = 5,
    baseline: Annotated[
        bool, typer.Option(help="Measure transformers' own generate beside the modes, in the same turns.")
    ] = True,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Also draw speedup against length to this file (SVG).",
            rich_help_panel=options.OUTPUT,
            show_default=False,
        ),
    ] = None,
    shapes: Annotated[
        str | None,
        typer.Option(
            help="DRAFT:TARGET, for example qwen2.5-0.5b:qwen2.5-7b or tiny:tiny: these sizes with random weights."
        ),
    ] = None,
    scorer: options.Scorer = None,
    recompute: options.Recompute = None,
    accept_risk: options.AcceptRisk = None,
    exact_layers: options.ExactLayers = None,
    look_ahead: options.LookAhead = None,
    chunk_size: options.ChunkSize = None,
    draft_window: options.DraftWindow = None,
    prefill_chunk: options.PrefillChunk = None,
    prompt: options.Prompt = None,
    pair: options.Pair = None,
    draft: options.Draft = None,
    target: options.Target = None,
    devices: options.Devices = None,
    tensor_parallel: options.TensorParallel = None,
    dtype: options.Dtype = None,
    quantization: options.Quantization = None,
    offline: options.Offline = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Time to first token by mode, length and keep ratio: medians, by phase, with the speedup over full prefill.

    The row `transformers` is transformers' own generate, with its own attention, on the same tokens and weights.

    Examples:
      specprefill bench prefill --lengths 4096,8192 --keep 0.1,0.2 --repeat 5 --json

      specprefill bench prefill --lengths 2048,4096,8192 --keep 0.1,0.2 --plot speedup.svg

      specprefill bench prefill --shapes qwen2.5-0.5b:qwen2.5-32b --dtype bfloat16 --lengths 32768 --keep 0.1
    """
    given = locals()
    flags = {name: value for name, value in given.items() if name != "keep"}
    settings = options.settings_from({**flags, "max_new_tokens": 1})
    sizes = whole_numbers(lengths, "--lengths")
    named = split(modes, "--modes")
    check_plot(plot, named, baseline)
    from specprefill_cli.answering.session import check_names, loads_draft, open_session
    from specprefill_cli.cli.idle_options import without_effect
    from specprefill_cli.lab.benchmarks.prefill import bench_prefill
    from specprefill_cli.lab.evaluation.runner import configurations
    from specprefill_cli.models.quantization import NONE

    wanted = configurations(named, ratios(keep, settings), [settings.scorer])
    for configuration in wanted:
        check_names(configuration.settings(settings))
    notes = Notes(quiet)
    if shapes:
        if any(flags[name] is not None for name in ("pair", "draft", "target")):
            raise UsageError("--shapes makes models of its own; leave out --pair, --draft and --target")
        if settings.quantization != NONE:
            raise UsageError("--shapes makes random weights in --dtype; --quantization needs a checkpoint")
        from specprefill_cli.distributed.launch import refuse_ranks
        from specprefill_cli.lab.benchmarks.shapes import shaped_session

        refuse_ranks(settings.tensor_parallel, "bench prefill --shapes")
        session = shaped_session(shapes, settings)
    else:
        session = open_session(
            settings, draft=any(loads_draft(configuration.settings(settings)) for configuration in wanted)
        )
    wanted = [configuration.named(session) for configuration in wanted]
    for idle in without_effect(given, [configuration.settings(settings) for configuration in wanted]):
        notes.warn(idle)
    peers = baselines(session.pair, notes) if baseline else []
    with notes.progress("measuring") as update:
        rows = bench_prefill(session, sizes, wanted, repeat, settings, update, peers)
    show(rows, json, bench_table)
    if plot is not None:
        from specprefill_cli.files import write_whole
        from specprefill_cli.lab.benchmarks.plot import speedup_plot

        write_whole(plot, speedup_plot(rows))


def baselines(pair: LoadedPair, notes: Notes) -> list[Peer]:
    """Transformers with the pair's target; none where ranks share it: `generate` would wait for the others for ever."""
    from specprefill_cli.lab.benchmarks.peers import transformers_peer

    if pair.ranks.size > 1:
        notes.warn("transformers is not measured: its generate would run on one rank of several alone")
        return []
    return [transformers_peer(pair.target)]


def check_plot(plot: Path | None, modes: list[str], baseline: bool) -> None:
    """Raises UsageError, before anything is loaded, for a plot that could not be written or would be empty."""
    if plot is None:
        return
    from specprefill_cli.files import check_can_write
    from specprefill_cli.lab.plots import require_matplotlib

    require_matplotlib("--plot")
    check_can_write(plot, "--plot")
    if "full" not in modes or (set(modes) == {"full"} and not baseline):
        raise UsageError("--plot shows speedups over full: --modes must have full and another mode")


@app.command("decode")
def decode(
    length: Annotated[int, typer.Option(min=1, help="Prompt length in tokens.")] = 2_048,
    tasks: Annotated[
        str, typer.Option(help="quote: repeat the document, stop tokens ignored; short: questions. With commas.")
    ] = "quote,short",
    speculate: Annotated[
        str, typer.Option(help="What is compared with plain decoding: auto or numbers, comma-separated.")
    ] = AUTO,
    repeat: Repeat = 5,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Tokens of each quote.")] = 96,
    proposer: options.Proposer = None,
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    seed: options.Seed = None,
    mode: options.Mode = None,
    keep: options.Keep = None,
    scorer: options.Scorer = None,
    look_ahead: options.LookAhead = None,
    chunk_size: options.ChunkSize = None,
    draft_window: options.DraftWindow = None,
    prefill_chunk: options.PrefillChunk = None,
    prompt: options.Prompt = None,
    pair: options.Pair = None,
    draft: options.Draft = None,
    target: options.Target = None,
    devices: options.Devices = None,
    tensor_parallel: options.TensorParallel = None,
    dtype: options.Dtype = None,
    quantization: options.Quantization = None,
    offline: options.Offline = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Tokens a second, speculative against plain decoding: medians of rounds measured in turns.

    Example:
      specprefill bench decode --speculate auto,4 --repeat 5 --json
    """
    settings = options.settings_from({name: value for name, value in locals().items() if name != "speculate"})
    paces = [pace if pace == AUTO else whole_number(pace, "--speculate") for pace in split(speculate, "--speculate")]
    wanted_tasks = split(tasks, "--tasks")
    from dataclasses import replace

    from specprefill_cli.answering.session import check_names, loads_draft, open_session
    from specprefill_cli.decoding.speculation import adapts
    from specprefill_cli.lab.benchmarks.decode import bench_decode, check_tasks

    check_names(settings)
    check_tasks(wanted_tasks)
    wanted = [replace(settings, speculate=pace) for pace in paces]
    notes = Notes(quiet)
    session = open_session(settings, draft=any(loads_draft(one) for one in wanted))
    # What speculation costs is measured while its mode is warmed up.
    session.warm_up(next((one for one in wanted if adapts(one)), wanted[0]))
    with notes.progress("measuring") as update:
        rows = bench_decode(session, length, wanted_tasks, paces, repeat, settings, update)
    show(rows, json, decode_table)


def show(rows: list, json: bool, table: Callable[[list], Table]) -> None:
    """Rows to standard output: as one JSON object with host and versions, or as a table."""
    from specprefill_cli.lab.benchmarks.prefill import host, versions

    if not json:
        console(sys.stdout).print(table(rows))
        return
    from dataclasses import asdict

    print_json({"rows": [asdict(row) for row in rows], "host": host(), "versions": versions()})


def bench_table(rows: list[BenchRow]) -> Table:
    from rich.table import Table

    from specprefill_cli.reporting.table import keep_text, phase_text, seconds

    header = (
        "tokens",
        "mode",
        "keep",
        "TTFT [quartiles]",
        "x full",
        "limit",
        "efficiency",
        "peak memory",
        "of it new",
        "phases",
    )
    table = Table(*header, box=None)
    for row in rows:
        table.add_row(
            f"{row.length:,}",
            row.mode,
            keep_text(row.mode, row.keep),
            f"{seconds(row.ttft_seconds)} [{seconds(row.ttft_low)}, {seconds(row.ttft_high)}]",
            "" if row.speedup is None else f"{row.speedup:.2f}",
            "" if row.limit is None else f"{row.limit:.2f}",
            "" if row.efficiency is None else f"{row.efficiency:.2f}",
            mebibytes(row.peak_memory_bytes),
            mebibytes(row.memory_growth_bytes),
            phase_text(row.phases),
        )
    return table


def mebibytes(count: int | None) -> str:
    return "" if count is None else f"{count / 2**20:,.0f} MiB"


def decode_table(rows: list[DecodeRow]) -> Table:
    from rich.table import Table

    table = Table("task", "speculate", "tokens", "plain", "speculative", r"x plain \[quartiles]", "accepted", "a round",
                  "proposer", "tokens the same", box=None)  # fmt: skip
    for row in rows:
        table.add_row(
            row.task,
            row.speculate,
            str(row.answer_tokens),
            f"{row.plain_tokens_per_second:,.0f}/s",
            f"{row.tokens_per_second:,.0f}/s",
            f"{row.speedup:.2f} [{row.speedup_low:.2f}, {row.speedup_high:.2f}]",
            "" if row.acceptance_rate is None else f"{row.acceptance_rate:.2f}",
            "" if row.accepted_length_mean is None else f"{row.accepted_length_mean:.1f}",
            row.proposer or "",
            "" if row.identical is None else "yes" if row.identical else "no",
        )
    return table

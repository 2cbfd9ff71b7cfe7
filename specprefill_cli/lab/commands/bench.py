"""`specprefill bench`: speed, measured in one run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specprefill_cli.cli.choices import concurrency_of, split
from specprefill_cli.cli.console import Notes
from specprefill_cli.cli.loading import warn_of_idle_options
from specprefill_cli.cli.options import MODE_LIST, Given, Json, Quiet, with_settings
from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.files import write_whole
from specprefill_cli.lab.commands.checks import refuse_ranks
from specprefill_cli.lab.commands.lists import KEEP_LIST, SPECULATE_LIST, whole_numbers
from specprefill_cli.lab.commands.options import Lengths, Repeat, check_plot, plot_option
from specprefill_cli.settings import OFF, Settings

if TYPE_CHECKING:
    from specprefill_cli.answering.session import Session
    from specprefill_cli.lab.benchmarks.peers import Peer
    from specprefill_cli.models.loading import LoadedPair

Shapes = Annotated[
    str | None,
    typer.Option(
        help="DRAFT:TARGET, for example qwen2.5-0.5b:qwen2.5-7b or tiny:tiny: these sizes with random weights."
    ),
]

app = typer.Typer(no_args_is_help=True)


@app.callback()
def group() -> None:
    """Measure speed on this machine.

    Example:
      specprefill bench prefill --lengths 4096,8192 --keep 0.1,0.2
    """


@app.command("prefill")
@with_settings("models", "prefill", lists=(MODE_LIST, KEEP_LIST))
def prefill(
    lengths: Lengths = "2048,8192",
    repeat: Repeat = 5,
    baseline: Annotated[bool, typer.Option(help="Measure transformers' own generate in turn with the modes.")] = True,
    plot: Annotated[Path | None, plot_option("speedup against length")] = None,
    shapes: Shapes = None,
    peak_tflops: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            help="What one device can do at most, in TFLOP/s, for MFU; known for common GPUs in half precision.",
            show_default=False,
        ),
    ] = None,
    *,
    settings: Settings,
    given: Given,
    modes: list[str],
    keeps: list[float | None],
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Time to first token by mode, length and keep ratio: medians, by phase, with the speedup over full prefill.

    The row `transformers` is transformers' own generate, with its own attention, on the same tokens and weights.

    Examples:
      specprefill bench prefill --lengths 4096,8192 --keep 0.1,0.2 --repeat 5 --json

      specprefill bench prefill --lengths 2048,4096,8192 --keep 0.1,0.2 --plot speedup.svg

      specprefill bench prefill --shapes qwen2.5-0.5b:qwen2.5-32b --dtype bfloat16 --lengths 32768 --keep 0.1
    """
    settings = settings.varied(max_new_tokens=1)
    sizes = whole_numbers(lengths, "--lengths")
    check_plot(plot)
    if plot is not None and ("full" not in modes or (set(modes) == {"full"} and not baseline)):
        raise UsageError("--plot shows speedups over full: --modes must have full and another mode")
    from specprefill_cli.lab.benchmarks.prefill import bench_prefill
    from specprefill_cli.lab.benchmarks.utilization import peak_of
    from specprefill_cli.lab.evaluation.runner import configurations
    from specprefill_cli.lab.tables import PREFILL, show_benchmark

    cases = configurations(modes, keeps, [settings.scorer])
    notes = Notes(quiet)
    session = open_measured_session(settings, [case.settings(settings) for case in cases], shapes, given)
    cases = [case.named(session) for case in cases]
    warn_of_idle_options(given, [case.settings(settings) for case in cases], notes)
    peers = baselines(session.pair, notes) if baseline else []
    peak = peak_of(session.pair, peak_tflops)
    with notes.progress("measuring") as update:
        rows = bench_prefill(session, sizes, cases, repeat, settings, update, peers, peak)
    show_benchmark(rows, PREFILL, json)
    if plot is not None:
        from specprefill_cli.lab.benchmarks.plot import speedup_plot

        write_whole(plot, speedup_plot(rows))


def open_measured_session(
    settings: Settings, variants: Sequence[Settings], shapes: str | None, given: Given
) -> Session:
    """Load the pair, or make one with random weights. Raises UsageError for options that `shapes` excludes."""
    from specprefill_cli.answering.resolve import loads_draft
    from specprefill_cli.answering.session import open_session
    from specprefill_cli.lab.benchmarks.shapes import shaped_session
    from specprefill_cli.models.quantization import NONE

    if shapes is None:
        return open_session(settings, draft=any(map(loads_draft, variants)))
    if {"pair", "draft", "target"} & set(given):
        raise UsageError("--shapes makes models of its own; leave out --pair, --draft and --target")
    if settings.quantization != NONE:
        raise UsageError("--shapes makes random weights in --dtype; --quantization needs a checkpoint")
    return shaped_session(shapes, settings)


def baselines(pair: LoadedPair, notes: Notes) -> list[Peer]:
    """Transformers with the pair's target; none where several ranks share it, because `generate` would deadlock."""
    from specprefill_cli.lab.benchmarks.peers import transformers_peer

    if pair.ranks.size > 1:
        notes.warn("transformers is not measured: its generate would run on one rank of several alone")
        return []
    return [transformers_peer(pair.loaded_target)]


@app.command("decode")
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
    """Tokens a second, speculative against plain decoding: medians of rounds measured in turns.

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


@app.command("throughput")
@with_settings("models", "prefill", "decoding", without=("max_new_tokens",), lists=(MODE_LIST, KEEP_LIST))
def throughput(
    length: Annotated[int, typer.Option(min=1, help="Prompt length in tokens.")] = 8_192,
    limit: Annotated[float, typer.Option(min=0.001, help="Seconds that the median TTFT may take.")] = 5.0,
    requests: Annotated[int, typer.Option(min=2, help="Questions at each rate.")] = 24,
    concurrency: Annotated[str, typer.Option(help="Questions at once, comma-separated; auto is allowed.")] = "1,auto",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each answer at most.")] = 32,
    plot: Annotated[Path | None, plot_option("TTFT against the rate")] = None,
    shapes: Shapes = None,
    server: Annotated[
        bool,
        typer.Option(
            "--server", help="Load the running server instead, with the questions about the sample documents."
        ),
    ] = False,
    clients: Annotated[int, typer.Option(min=1, help="With --server: clients that ask at the same time.")] = 64,
    seconds: Annotated[float, typer.Option(min=1, help="With --server: how long they ask.")] = 60.0,
    *,
    settings: Settings,
    given: Given,
    modes: list[str],
    keeps: list[float | None],
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Questions a second that can be answered: rates rise until the median TTFT is above a limit or the queue grows.

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


@app.command("needles")
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
    """Questions about one sentence hidden in documents of any length: right answers, time to first token, memory.

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


@app.command("peer")
@with_settings(
    "models",
    "prefill",
    without=(
        "devices",
        "tensor_parallel",
        "quantization",
        "recompute",
        "recompute_by",
        "accept_risk",
        "exact_layers",
        "draft_window",
    ),
    lists=(MODE_LIST, KEEP_LIST),
)
def peer(
    lengths: Lengths = "2048,8192",
    repeat: Repeat = 5,
    gguf: Annotated[
        Path | None,
        typer.Option(
            help="GGUF file of the pair's target; without it that of the bundled pair is made.", show_default=False
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="llama.cpp, on the CPU; vllm, on an NVIDIA GPU; auto takes vllm where it can run.")
    ] = "auto",
    *,
    settings: Settings,
    modes: list[str],
    keeps: list[float | None],
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Time to first token of another program and of our modes: the same target, prompt and device.

    llama.cpp computes with a GGUF file's quantised weights, our target with the same weights in --dtype, and both with the
    same threads. vLLM loads the target's own checkpoint; a row of transformers stands beside it.

    Example:
      specprefill bench peer --lengths 4096,8192 --keep 0.1,0.2 --json
    """
    settings = settings.varied(max_new_tokens=1)
    sizes = whole_numbers(lengths, "--lengths")
    if gguf is not None and not gguf.is_file():
        raise SpecprefillError(f"{gguf}: no such file; give the GGUF file of the pair's target")
    refuse_ranks(settings.tensor_parallel, "bench peer")
    from specprefill_cli.lab.benchmarks.peer_session import chosen_engine, open_with_peers
    from specprefill_cli.lab.benchmarks.prefill import bench_prefill
    from specprefill_cli.lab.evaluation.runner import configurations
    from specprefill_cli.lab.tables import PREFILL, show_benchmark

    notes = Notes(quiet)
    program = chosen_engine(engine, gguf)
    with notes.progress("loading the models"):
        session, peers = open_with_peers(program, settings, sizes, gguf)
    cases = [case.named(session) for case in configurations(modes, keeps, [settings.scorer])]
    with notes.progress("measuring") as update:
        rows = bench_prefill(session, sizes, cases, repeat, settings, update, peers)
    show_benchmark(rows, PREFILL, json)

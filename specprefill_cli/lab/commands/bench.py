"""`specprefill bench`: speed, measured in a single run."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specprefill_cli.cli.console import Notes
from specprefill_cli.cli.options import MODE_LIST, Json, Quiet, split_list, with_settings
from specprefill_cli.errors import UsageError
from specprefill_cli.lab.commands.bench_questions import needles, recall
from specprefill_cli.lab.commands.options import (
    KEEP_LIST,
    SPECULATE_LIST,
    Given,
    Lengths,
    Repeat,
    Shapes,
    check_plot,
    open_measured_session,
    plot_option,
    refuse_ranks,
    whole_numbers,
)
from specprefill_cli.settings import AUTO, Settings

if TYPE_CHECKING:
    from specprefill_cli.answering.session import Session
    from specprefill_cli.lab.benchmarks.peers import Peer
    from specprefill_cli.lab.evaluation.runner import Configuration
    from specprefill_cli.models.loaded import LoadedPair

app = typer.Typer(no_args_is_help=True)


@app.callback()
def group() -> None:
    """Measure speed on this machine.

    Example:
      specprefill bench prefill --lengths 4096,8192 --keep 0.1,0.2
    """


@with_settings("models", "prefill", "tuning", lists=(MODE_LIST, KEEP_LIST))
def prefill(
    lengths: Lengths = "2048,8192",
    repeat: Repeat = 5,
    baseline: Annotated[bool, typer.Option(help="Measure transformers' own generate in turn with the modes.")] = True,
    llama_cpp: Annotated[
        bool,
        typer.Option("--llama-cpp", help="Measure llama.cpp in turn, too: on the CPU, with the target's GGUF file."),
    ] = False,
    plot: Annotated[Path | None, plot_option("speedup against length")] = None,
    shapes: Shapes = None,
    *,
    settings: Settings,
    given: Given,
    modes: list[str],
    keeps: list[float | None],
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure the time to first token by mode, length and keep ratio: medians, phases, and speedup over full prefill.

    The row `transformers` is transformers' own generate, with its own attention, on the same tokens and weights. With
    --llama-cpp there is a column for plain decoding; llama.cpp computes with the file's quantised weights.

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
    from specprefill_cli.lab.benchmarks.peers import gguf_file
    from specprefill_cli.lab.benchmarks.prefill import COLUMNS, PEER_COLUMNS, bench_prefill, speedup_plot
    from specprefill_cli.lab.tables import show_benchmark
    from specprefill_cli.models.sources.pairs import chosen_pair

    file = None
    if llama_cpp:
        if shapes is not None:
            raise UsageError("--llama-cpp needs a model with a file; leave out --shapes")
        refuse_ranks(settings.tensor_parallel, "--llama-cpp")
        file, settings = gguf_file(chosen_pair(settings).target), settings.varied(devices="cpu")
    session, cases = open_cases(settings, modes, keeps, shapes, given)
    peers = peers_of(session.pair, Notes(quiet), baseline, file, max(sizes))
    measure = partial(bench_prefill, session, sizes, cases, repeat, settings, peers=peers)
    show_benchmark(measure, PEER_COLUMNS if llama_cpp else COLUMNS, json, quiet, plot, speedup_plot)


def open_cases(
    settings: Settings, modes: list[str], keeps: list[float | None], shapes: str | None, given: Given
) -> tuple[Session, list[Configuration]]:
    """A session, and every mode with each keep ratio that it uses."""
    from specprefill_cli.lab.evaluation.runner import configurations

    cases = configurations(modes, keeps, [settings.scorer])
    session = open_measured_session(settings, [case.settings(settings) for case in cases], shapes, given)
    return session, [case.resolve(session) for case in cases]


def peers_of(pair: LoadedPair, notes: Notes, baseline: bool, file: Path | None, longest: int) -> list[Peer]:
    """Transformers with the pair's target if `baseline`, and llama.cpp with a GGUF file, if any; longest: prompt in tokens.

    Without transformers if several ranks share the target, because `generate` would deadlock.
    """
    import torch

    from specprefill_cli.lab.benchmarks.peers import llama_cpp_peer, transformers_peer

    peers = [] if file is None else [llama_cpp_peer(file, longest, torch.get_num_threads())]
    if baseline and pair.ranks.size > 1:
        notes.warn("transformers is not measured: its generate would run on one rank of several alone")
    elif baseline:
        peers.insert(0, transformers_peer(pair.loaded_target))
    return peers


@with_settings("models", "prefill", "tuning", "decoding", without=("max_new_tokens",), lists=(SPECULATE_LIST,))
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
    names = split_list(tasks, "--tasks")
    from specprefill_cli.lab.benchmarks.decode import COLUMNS, bench_decode, check_tasks
    from specprefill_cli.lab.tables import show_benchmark

    check_tasks(names)
    variants = [settings.varied(speculate=pace) for pace in speculates]
    session = open_measured_session(settings, variants, shapes, given)
    session.warm_up(variants[0])
    measure = partial(bench_decode, session, length, names, speculates, repeat, settings)
    show_benchmark(measure, COLUMNS, json, quiet)


@with_settings("models", "prefill", "tuning", "decoding", without=("max_new_tokens",), lists=(MODE_LIST, KEEP_LIST))
def throughput(
    length: Annotated[int, typer.Option(min=1, help="Prompt length in tokens.")] = 8_192,
    limit: Annotated[float, typer.Option(min=0.001, help="Highest median TTFT, in seconds.")] = 5.0,
    requests: Annotated[int, typer.Option(min=2, help="Questions at each rate.")] = 24,
    concurrency: Annotated[str, typer.Option(help="Questions at once, comma-separated; auto is allowed.")] = "1,auto",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer in tokens.")] = 32,
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
      specprefill bench throughput --modes full,select --keep 0.1,0.2,0.3

      specprefill bench throughput --server --clients 64 --seconds 300
    """
    if server:
        if given or shapes is not None:
            raise UsageError("--server measures the server as it was started; give it only --clients and --seconds")
        from specprefill_cli.lab.benchmarks import server_load
        from specprefill_cli.lab.tables import show_benchmark

        show_benchmark(partial(server_load.bench_server, clients, seconds), server_load.COLUMNS, json, quiet)
        return
    settings = settings.varied(max_new_tokens=max_new_tokens)
    concurrencies = [
        None if part == AUTO else whole_numbers(part, "--concurrency")[0]
        for part in split_list(concurrency, "--concurrency")
    ]
    from specprefill_cli.lab.benchmarks.throughput import COLUMNS, bench_throughput
    from specprefill_cli.lab.tables import show_benchmark

    session, cases = open_cases(settings, modes, keeps, shapes, given)
    measure = partial(bench_throughput, session, length, cases, concurrencies, requests, limit, settings)
    show_benchmark(measure, COLUMNS, json, quiet)


# The help lists them in this order.
for command in (prefill, decode, throughput, needles, recall):
    app.command(command.__name__)(command)

"""`specprefill bench prefill` and `bench peer`: time to first token, ours and that of other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specprefill_cli.cli.console import Notes
from specprefill_cli.cli.options import MODE_LIST, Given, Json, Quiet, with_settings
from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.files import write_whole
from specprefill_cli.lab.commands.bench.session import Shapes, open_measured_session
from specprefill_cli.lab.commands.checks import refuse_ranks
from specprefill_cli.lab.commands.lists import KEEP_LIST, whole_numbers
from specprefill_cli.lab.commands.options import Lengths, Repeat, check_plot, plot_option
from specprefill_cli.settings import Settings

if TYPE_CHECKING:
    from specprefill_cli.lab.benchmarks.peers import Peer
    from specprefill_cli.models.loading import LoadedPair


@with_settings("models", "prefill", lists=(MODE_LIST, KEEP_LIST))
def prefill(
    lengths: Lengths = "2048,8192",
    repeat: Repeat = 5,
    baseline: Annotated[bool, typer.Option(help="Measure transformers' own generate in turn with the modes.")] = True,
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
    from specprefill_cli.lab.evaluation.runner import configurations
    from specprefill_cli.lab.tables import PREFILL, show_benchmark

    cases = configurations(modes, keeps, [settings.scorer])
    notes = Notes(quiet)
    session = open_measured_session(settings, [case.settings(settings) for case in cases], shapes, given)
    cases = [case.named(session) for case in cases]
    peers = baselines(session.pair, notes) if baseline else []
    with notes.progress("measuring") as update:
        rows = bench_prefill(session, sizes, cases, repeat, settings, update, peers)
    show_benchmark(rows, PREFILL, json)
    if plot is not None:
        from specprefill_cli.lab.benchmarks.plot import speedup_plot

        write_whole(plot, speedup_plot(rows))


def baselines(pair: LoadedPair, notes: Notes) -> list[Peer]:
    """Transformers with the pair's target; none where several ranks share it, because `generate` would deadlock."""
    from specprefill_cli.lab.benchmarks.peers import transformers_peer

    if pair.ranks.size > 1:
        notes.warn("transformers is not measured: its generate would run on one rank of several alone")
        return []
    return [transformers_peer(pair.loaded_target)]


@with_settings(
    "models",
    "prefill",
    without=(
        "devices",
        "tensor_parallel",
        "quantization",
        "recompute",
        "accept_risk",
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
            help="GGUF file of the pair's target; default: make that of the bundled pair.", show_default=False
        ),
    ] = None,
    *,
    settings: Settings,
    modes: list[str],
    keeps: list[float | None],
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure the time to first token of llama.cpp and of our modes: same target, prompt and CPU threads.

    llama.cpp computes with a GGUF file's quantised weights, our target with the same weights in --dtype.

    Example:
      specprefill bench peer --lengths 4096,8192 --keep 0.1,0.2 --json
    """
    settings = settings.varied(max_new_tokens=1)
    sizes = whole_numbers(lengths, "--lengths")
    if gguf is not None and not gguf.is_file():
        raise SpecprefillError(f"{gguf}: no such file; give the GGUF file of the pair's target")
    refuse_ranks(settings.tensor_parallel, "bench peer")
    from specprefill_cli.lab.benchmarks.peer_session import open_with_llama_cpp
    from specprefill_cli.lab.benchmarks.prefill import bench_prefill
    from specprefill_cli.lab.evaluation.runner import configurations
    from specprefill_cli.lab.tables import PREFILL, show_benchmark

    notes = Notes(quiet)
    with notes.progress("loading the models"):
        session, llama_cpp = open_with_llama_cpp(settings, sizes, gguf)
    cases = [case.named(session) for case in configurations(modes, keeps, [settings.scorer])]
    with notes.progress("measuring") as update:
        rows = bench_prefill(session, sizes, cases, repeat, settings, update, [llama_cpp])
    show_benchmark(rows, PREFILL, json)

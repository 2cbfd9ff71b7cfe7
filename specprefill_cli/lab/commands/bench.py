"""`specprefill bench`: speed, measured in one run."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specprefill_cli.cli.choices import split
from specprefill_cli.cli.console import Notes
from specprefill_cli.cli.loading import warn_of_idle_options
from specprefill_cli.cli.options import MODE_LIST, OUTPUT, Given, Json, Quiet, with_settings
from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.files import check_can_write, write_whole
from specprefill_cli.lab.commands.checks import refuse_ranks
from specprefill_cli.lab.commands.lists import KEEP_LIST, SPECULATE_LIST, whole_numbers
from specprefill_cli.lab.commands.options import Lengths, Repeat
from specprefill_cli.settings import Settings

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
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Also draw speedup against length to this file (SVG).", rich_help_panel=OUTPUT, show_default=False
        ),
    ] = None,
    shapes: Shapes = None,
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
    if plot is not None:
        check_plot(plot, modes, baseline)
    from specprefill_cli.lab.benchmarks.prefill import bench_prefill
    from specprefill_cli.lab.evaluation.runner import configurations
    from specprefill_cli.lab.tables import PREFILL, show_benchmark

    cases = configurations(modes, keeps, [settings.scorer])
    notes = Notes(quiet)
    session = open_measured_session(settings, [case.settings(settings) for case in cases], shapes, given)
    cases = [case.named(session) for case in cases]
    warn_of_idle_options(given, [case.settings(settings) for case in cases], notes)
    peers = baselines(session.pair, notes) if baseline else []
    with notes.progress("measuring") as update:
        rows = bench_prefill(session, sizes, cases, repeat, settings, update, peers)
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
    refuse_ranks(settings.tensor_parallel, "bench --shapes")
    return shaped_session(shapes, settings)


def baselines(pair: LoadedPair, notes: Notes) -> list[Peer]:
    """Transformers with the pair's target; none where several ranks share it, because `generate` would deadlock."""
    from specprefill_cli.lab.benchmarks.peers import transformers_peer

    if pair.ranks.size > 1:
        notes.warn("transformers is not measured: its generate would run on one rank of several alone")
        return []
    return [transformers_peer(pair.loaded_target)]


def check_plot(plot: Path, modes: Sequence[str], baseline: bool) -> None:
    """Raises UsageError, before anything is loaded, for a plot that could not be written or would be empty."""
    from specprefill_cli.lab.plots import require_matplotlib

    require_matplotlib("--plot")
    check_can_write(plot, "--plot")
    if "full" not in modes or (set(modes) == {"full"} and not baseline):
        raise UsageError("--plot shows speedups over full: --modes must have full and another mode")


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


@app.command("peer")
@with_settings(
    "models",
    "prefill",
    without=("devices", "tensor_parallel", "quantization", "recompute", "accept_risk", "exact_layers", "draft_window"),
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
    *,
    settings: Settings,
    modes: list[str],
    keeps: list[float | None],
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Time to first token of llama.cpp and of our modes: one GGUF file, the same prompt, the same threads, on the CPU.

    llama.cpp computes with the file's quantised weights, our target with the same weights in --dtype.

    Example:
      specprefill bench peer --lengths 4096,8192 --keep 0.1,0.2 --json
    """
    settings = settings.varied(devices="cpu", max_new_tokens=1)
    sizes = whole_numbers(lengths, "--lengths")
    if gguf is not None and not gguf.is_file():
        raise SpecprefillError(f"{gguf}: no such file; give the GGUF file of the pair's target")
    import torch

    from specprefill_cli.answering.session import open_session
    from specprefill_cli.lab.benchmarks.gguf_target import bundled_gguf, with_gguf_target
    from specprefill_cli.lab.benchmarks.peers import llama_cpp_peer
    from specprefill_cli.lab.benchmarks.prefill import bench_prefill
    from specprefill_cli.lab.evaluation.runner import configurations
    from specprefill_cli.lab.tables import PREFILL, show_benchmark
    from specprefill_cli.models.pairs import BUNDLED

    refuse_ranks(settings.tensor_parallel, "bench peer")
    notes = Notes(quiet)
    with ExitStack() as stack:
        with notes.progress("loading the models"):
            session = open_session(settings, draft=True, target_weights=False)
            name = session.pair.target.name
            if gguf is None:
                if not name.startswith(BUNDLED):
                    raise UsageError(f"--gguf is needed: give the GGUF file of {name}")
                gguf = bundled_gguf(name, Path(stack.enter_context(tempfile.TemporaryDirectory())))
            # A prompt may be a few tokens longer than its nominal length.
            llama_cpp = llama_cpp_peer(gguf, max(sizes) + 64, torch.get_num_threads())
            with_gguf_target(session.pair, gguf, settings.dtype)
        cases = [case.named(session) for case in configurations(modes, keeps, [settings.scorer])]
        with notes.progress("measuring") as update:
            rows = bench_prefill(session, sizes, cases, repeat, settings, update, [llama_cpp])
    show_benchmark(rows, PREFILL, json)

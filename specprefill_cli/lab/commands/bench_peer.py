"""`specprefill bench peer`: llama.cpp's plain prefill beside our modes, on the same weights."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from specprefill_cli.cli.console import Notes
from specprefill_cli.cli.options import MODE_LIST, Json, Quiet, with_settings
from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.lab.commands.lists import KEEP_LIST, whole_numbers
from specprefill_cli.settings import Settings


@with_settings(
    "models",
    "prefill",
    without=("devices", "tensor_parallel", "quantization", "recompute", "accept_risk", "exact_layers", "draft_window"),
    lists=(MODE_LIST, KEEP_LIST),
)
def peer(
    lengths: Annotated[str, typer.Option(help="Prompt lengths in tokens, comma-separated.")] = "2048,8192",
    repeat: Annotated[int, typer.Option(min=1, help="Number of measured rounds, after one warm-up round.")] = 5,
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
    from specprefill_cli.distributed.launch import refuse_ranks
    from specprefill_cli.lab.benchmarks.gguf_target import bundled_gguf, with_gguf_target
    from specprefill_cli.lab.benchmarks.peers import llama_cpp_peer
    from specprefill_cli.lab.benchmarks.prefill import bench_prefill
    from specprefill_cli.lab.commands.tables import PREFILL, show_benchmark
    from specprefill_cli.lab.evaluation.runner import configurations
    from specprefill_cli.models.loading import load_draft_side
    from specprefill_cli.models.pairs import BUNDLED

    refuse_ranks(settings.tensor_parallel, "bench peer")
    notes = Notes(quiet)
    with ExitStack() as stack:
        with notes.progress("loading the models"):
            session = open_session(settings, draft=True, load=load_draft_side)
            name = session.pair.target.name
            if gguf is None:
                if not name.startswith(BUNDLED):
                    raise UsageError(f"--gguf is needed: give the GGUF file of {name}")
                gguf = bundled_gguf(name, Path(stack.enter_context(tempfile.TemporaryDirectory())))
            # A prompt may be a few tokens longer than its nominal length.
            llama_cpp = llama_cpp_peer(gguf, max(sizes) + 64, torch.get_num_threads())
            with_gguf_target(session.pair, gguf, settings.dtype)
        cases = [row.named(session) for row in configurations(modes, keeps, [settings.scorer])]
        with notes.progress("measuring") as update:
            rows = bench_prefill(session, sizes, cases, repeat, settings, update, [llama_cpp])
    show_benchmark(rows, PREFILL, json)

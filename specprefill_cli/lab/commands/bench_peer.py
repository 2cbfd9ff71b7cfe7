"""`specprefill bench peer`: llama.cpp's plain prefill beside our modes, on the same weights."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from specprefill_cli.cli import options
from specprefill_cli.cli.console import Notes
from specprefill_cli.cli.lists import ratios, split, whole_numbers
from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.lab.commands.bench import KeepList, Lengths, Modes, Repeat, bench_table, show


def peer(
    lengths: Lengths = "2048,8192",
    keep: KeepList = None,
    modes: Modes = "full,select",
    repeat: Repeat = 5,
    gguf: Annotated[
        Path | None,
        typer.Option(
            help="GGUF file of the pair's target; without it that of the bundled pair is made.", show_default=False
        ),
    ] = None,
    scorer: options.Scorer = None,
    look_ahead: options.LookAhead = None,
    chunk_size: options.ChunkSize = None,
    prefill_chunk: options.PrefillChunk = None,
    prompt: options.Prompt = None,
    pair: options.Pair = None,
    draft: options.Draft = None,
    target: options.Target = None,
    dtype: options.Dtype = None,
    offline: options.Offline = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Time to first token of llama.cpp and of our modes: one GGUF file, the same prompt, the same threads, on the CPU.

    llama.cpp computes with the file's quantised weights, our target with the same weights in --dtype.

    Example:
      specprefill bench peer --lengths 4096,8192 --keep 0.1,0.2 --json
    """
    flags = {name: value for name, value in locals().items() if name != "keep"}
    settings = options.settings_from({**flags, "devices": "cpu", "max_new_tokens": 1})
    sizes = whole_numbers(lengths, "--lengths")
    import torch

    from specprefill_cli.answering.session import check_names, open_session
    from specprefill_cli.distributed.launch import refuse_ranks
    from specprefill_cli.lab.benchmarks.gguf_target import bundled_gguf, with_gguf_target
    from specprefill_cli.lab.benchmarks.peers import llama_cpp_peer
    from specprefill_cli.lab.benchmarks.prefill import bench_prefill
    from specprefill_cli.lab.evaluation.runner import configurations
    from specprefill_cli.models.loading import load_draft_side
    from specprefill_cli.models.pairs import BUNDLED

    refuse_ranks(settings.tensor_parallel, "bench peer")
    wanted = configurations(split(modes, "--modes"), ratios(keep, settings), [settings.scorer])
    for configuration in wanted:
        check_names(configuration.settings(settings))
    if gguf is not None and not gguf.is_file():
        raise SpecprefillError(f"{gguf}: no such file; give the GGUF file of the pair's target")
    notes = Notes(quiet)
    with ExitStack() as stack:
        with notes.progress("loading the models"):
            session = open_session(settings, draft=True, load=load_draft_side)
            name = session.pair.target.name
            if gguf is None:
                if not name.startswith(BUNDLED):
                    raise UsageError(f"--gguf is needed: give the GGUF file of {name}")
                gguf = bundled_gguf(name, Path(stack.enter_context(tempfile.TemporaryDirectory())))
            # A few tokens more than asked for: prompts are as long as asked only nearly.
            other = llama_cpp_peer(gguf, max(sizes) + 64, torch.get_num_threads())
            with_gguf_target(session.pair, gguf, settings.dtype)
        wanted = [configuration.named(session) for configuration in wanted]
        with notes.progress("measuring") as update:
            rows = bench_prefill(session, sizes, wanted, repeat, settings, update, [other])
    show(rows, json, bench_table)

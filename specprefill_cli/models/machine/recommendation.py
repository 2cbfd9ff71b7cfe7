"""The pair that suits this machine: the largest that fits its memory and decodes at reading speed."""

from __future__ import annotations

import re
import timeit
from collections.abc import Iterable
from functools import partial

import torch

from specprefill_cli.models.running.int8 import Int8Linear, pack_rows
from specprefill_cli.models.sources.pairs import PAIRS, SMOLLM2, Pair, on_this_machine, runs_from_gguf
from specprefill_cli.models.sources.refs import ModelRef

# Sizes of the trial's matrix: too large for a processor's caches. Rows that `select` typically prefills, and runs.
TRIAL_OUTPUTS, TRIAL_INPUTS, TRIAL_ROWS, TRIAL_RUNS = 32_768, 2_048, 192, 4
# A document for the expected time, and operations of the draft and the sentence encoder for each of its tokens.
DOCUMENT_TOKENS, CHOOSER_FLOPS = 10_000, 6e7
# Slower than this nobody reads along, in tokens a second.
READING_SPEED = 8.0
# Memory beside the weights, in bytes: KV, a pass, and Python with its libraries. Bytes of a weight on a GPU; on a CPU it is 1.
BESIDE, GPU_BYTES = 1.5 * 2**30, 2


def parameters_of(pair: Pair) -> float | None:
    """Weights of a pair's target by its name; None where the name does not say."""
    size = re.search(r"-(\d+(?:\.\d+)?)b\b", pair.name, re.IGNORECASE)
    return float(size[1]) * 1e9 if size else None


def suitable_pair(pairs: Iterable[Pair], room: float, bytes_a_weight: float, most_weights: float) -> Pair | None:
    """The largest pair with at most so many weights that fits `room` bytes of memory; None where none does."""
    sizes = {pair.name: (parameters_of(pair) or 0.0, pair) for pair in pairs}
    fitting = [
        (weights, pair)
        for weights, pair in sizes.values()
        if 0 < weights <= most_weights and weights * bytes_a_weight + BESIDE <= room
    ]
    return max(fitting, key=lambda candidate: candidate[0])[1] if fitting else None


def measure_cpu() -> tuple[float, float]:
    """Operations a second of a short prefill in int8, and weights a second that decoding reads."""
    layer = Int8Linear(*pack_rows(torch.ones(TRIAL_OUTPUTS, TRIAL_INPUTS)), TRIAL_INPUTS, None)
    rows, weights = torch.ones(TRIAL_ROWS, TRIAL_INPUTS, dtype=torch.bfloat16), TRIAL_OUTPUTS * TRIAL_INPUTS
    long, short = (min(timeit.repeat(partial(layer, part), repeat=TRIAL_RUNS, number=1)) for part in (rows, rows[:1]))
    return 2 * weights * TRIAL_ROWS / long, weights / short


def recommend(memory: float, gpu_memory: float) -> str:
    """The recommended pair, what it takes, and on a CPU what to expect. memory, gpu_memory: bytes that are free."""
    if gpu_memory and (pair := suitable_pair(PAIRS.values(), gpu_memory, GPU_BYTES, float("inf"))) is not None:
        return f"--pair {pair.name}: the largest that fits the GPU memory"
    flops, weights_a_second = measure_cpu()
    gguf_pairs = (pair for pair in map(on_this_machine, PAIRS.values()) if runs_from_gguf(pair))
    pair = suitable_pair(gguf_pairs, memory, 1, weights_a_second / READING_SPEED)
    if pair is None:
        return f"--pair {SMOLLM2}: little memory, or a slow processor"
    weights = parameters_of(pair) or 0.0
    seconds = (DOCUMENT_TOKENS * CHOOSER_FLOPS + 2 * weights * TRIAL_ROWS) / flops
    place = "its weights are here" if ModelRef(pair.target).file else f"{0.7 * weights / 1e9:.1f} GB to download"
    return (
        f"--pair {pair.name}: {place}; expect {seconds:.1f} s to the first token for {DOCUMENT_TOKENS:,} tokens, and "
        f"{weights_a_second / weights:.0f} tokens a second"
    )

"""The pair that suits this machine: the largest that fits its memory and decodes at reading speed."""

import re
import timeit
from collections.abc import Iterable
from functools import partial

import torch

from specprefill_cli.models.machine.memory_plan import WEIGHTS_SHARE
from specprefill_cli.models.machine.quantization import cpu_has_bfloat16
from specprefill_cli.models.running.int8 import PROCESSOR, Int8Linear, pack_rows
from specprefill_cli.models.sources.pairs import PAIRS, SMOLLM2, Pair, on_this_machine, runs_from_gguf
from specprefill_cli.models.sources.refs import ModelRef

# Sizes of the trial's matrices: in prefill as large as those of a layer, in decoding too large for a processor's caches. Rows
# that `select` typically prefills, and runs.
PREFILL_OUTPUTS, DECODING_OUTPUTS, TRIAL_INPUTS, TRIAL_ROWS, TRIAL_RUNS = 8_192, 32_768, 2_048, 192, 4
# A document for the expected time, and operations of the draft and the sentence encoder for each of its tokens.
DOCUMENT_TOKENS, CHOOSER_FLOPS = 10_000, 5e7
# Slower than this nobody reads along, in tokens a second.
READING_SPEED = 8.0
# Memory beside the weights, in bytes: KV, a pass, and Python with its libraries.
BESIDE = 1.5 * 2**30
# Bytes of a weight: on a GPU, and on a CPU in int8 (with the 4 bits beside it) or in float32.
GPU_BYTES, PACKED_BYTES, WHOLE_BYTES = 2, 1.7, 4


def weights_of(pair: Pair) -> float:
    """The number of weights of a pair's target by its name; 0 where the name does not say."""
    size = re.search(r"-(\d+(?:\.\d+)?)b\b", pair.name)
    return float(size[1]) * 1e9 if size else 0.0


def suitable_pair(pairs: Iterable[Pair], room: float, bytes_a_weight: float, most_weights: float) -> Pair | None:
    """The largest pair with at most so many weights that fits `room` bytes of memory; None where none does."""
    most_weights = min(most_weights, (room - BESIDE) / bytes_a_weight)
    return max((pair for pair in pairs if 0 < weights_of(pair) <= most_weights), key=weights_of, default=None)


def measure_cpu() -> tuple[float, float]:
    """Operations a second of a short prefill in int8, and weights a second that decoding reads."""
    speeds = []
    for outputs, count in ((PREFILL_OUTPUTS, TRIAL_ROWS), (DECODING_OUTPUTS, 1)):
        layer = Int8Linear(*pack_rows(torch.ones(outputs, TRIAL_INPUTS)), TRIAL_INPUTS, None)
        rows = torch.ones(count, TRIAL_INPUTS, dtype=torch.bfloat16 if cpu_has_bfloat16() else torch.float32)
        seconds = min(timeit.repeat(partial(layer, rows), repeat=TRIAL_RUNS, number=1))
        speeds.append(outputs * TRIAL_INPUTS * count / seconds)
    return 2 * speeds[0], speeds[1]


def recommend(memory: float, gpu_memory: float) -> str:
    """The recommended pair, what it takes, and on a CPU what to expect. memory, gpu_memory: bytes that are free."""
    # Names round the number of weights down by up to a tenth.
    room = WEIGHTS_SHARE * gpu_memory / 1.1
    if gpu_memory and (pair := suitable_pair(PAIRS.values(), room, GPU_BYTES, float("inf"))) is not None:
        return f"--pair {pair.name}: the largest that fits the GPU memory"
    flops, weights_a_second = measure_cpu()
    gguf_pairs = (pair for pair in map(on_this_machine, PAIRS.values()) if runs_from_gguf(pair))
    size = PACKED_BYTES if PROCESSOR.startswith("AVX") else WHOLE_BYTES
    pair = suitable_pair(gguf_pairs, memory, size, weights_a_second / READING_SPEED)
    if pair is None:
        return f"--pair {SMOLLM2}: little memory, or a slow processor"
    weights = weights_of(pair)
    seconds = (DOCUMENT_TOKENS * CHOOSER_FLOPS + 2 * weights * TRIAL_ROWS) / flops
    download = f"{0.7 * weights / 1e9:.1f} GB to download, roughly"
    place = "its weights are here" if ModelRef(pair.target).file else download
    return (
        f"--pair {pair.name}: {place}; expect about {seconds:.0f} s to the first token for {DOCUMENT_TOKENS:,} tokens, and "
        f"up to {weights_a_second / weights:.0f} tokens a second"
    )

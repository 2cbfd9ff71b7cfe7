"""Speed and fixed cost of forward passes, measured on a GPU: what `--mode auto` assumes differs between cards and models."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from specprefill_cli.models.adapter import prefill, synchronize
from specprefill_cli.models.cost import cost_of
from specprefill_cli.models.loading import LoadedModel, LoadedPair

# Tokens of the pass that shows what computing takes: a small draft fills a large GPU only with thousands.
LONGEST = 8_192
# The first pass of a length loads libraries and takes memory.
TIMES = 2


def measure_passes(pair: LoadedPair, longest: int, clock: Callable[[], float] = time.perf_counter) -> None:
    """Measure speed and fixed cost of each model on a GPU, where they are not known yet, and note them with the model.

    Models that several ranks share keep the assumed cost. longest: tokens that a pass may have
    """
    if pair.ranks.size > 1:
        return
    for loaded in (pair.target, pair.draft):
        if isinstance(loaded, LoadedModel) and loaded.pass_tokens is None and on_gpu(loaded):
            measure(loaded, min(longest, LONGEST, loaded.context), clock)


def on_gpu(loaded: LoadedModel) -> bool:
    """Whether a part of a model is on a GPU."""
    return any(device.type != "cpu" for device in loaded.devices)


def measure(loaded: LoadedModel, tokens: int, clock: Callable[[], float]) -> None:
    """Note how fast a model computes a pass over so many tokens, and the fixed cost of a pass.

    That is the time of a pass over one token, which computes next to nothing, in tokens computed in the same time.
    """
    cost = cost_of(loaded)
    loaded.flops_per_second = cost.prefill_flops(tokens) / pass_seconds(loaded, tokens, clock)
    loaded.pass_tokens = pass_seconds(loaded, 1, clock) * loaded.flops_per_second / cost.linear_flops(1)


def pass_seconds(loaded: LoadedModel, tokens: int, clock: Callable[[], float]) -> float:
    """The shortest of a few passes over so many tokens, in seconds."""
    times = []
    for _ in range(TIMES):
        synchronize(loaded.devices)
        start = clock()
        prefill(loaded.model, torch.zeros(tokens, dtype=torch.int64), torch.arange(tokens), tokens)
        synchronize(loaded.devices)
        times.append(clock() - start)
    return min(times)

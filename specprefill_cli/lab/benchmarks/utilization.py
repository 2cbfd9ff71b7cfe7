"""Achieved operations a second, and their share of what the devices can do at most (MFU, arXiv 2204.02311, appendix B)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from specprefill_cli.models.cost import cost_of
from specprefill_cli.prefill.registry import MODES, SCORERS
from specprefill_cli.record import BASELINE

if TYPE_CHECKING:
    import torch

    from specprefill_cli.answering.stream import AnswerStream
    from specprefill_cli.models.loading import LoadedPair

# Dense matrix products in bfloat16 or float16, accumulated in float32, in TFLOP/s, from the vendors' data sheets; by words
# of the device's name, the more special first.
PEAKS = {
    "B200": 2_250.0,
    "H200": 989.4,
    "H100 PCIe": 756.0,
    "H100 NVL": 835.5,
    "H100": 989.4,
    "GH200": 989.4,
    "A100": 312.0,
    "A800": 312.0,
    "L40S": 362.0,
    "L40": 181.0,
    "L4": 121.0,
    "A40": 149.7,
    "A10G": 70.0,
    "A10": 125.0,
    "RTX 4090": 165.2,
    "RTX 3090": 71.0,
    "V100": 125.0,
    "T4": 65.0,
    "MI300X": 1_307.4,
    "MI250X": 383.0,
    "MI250": 362.1,
}
# What each group of phases computes.
DRAFT_PHASES, TARGET_PHASES = ("draft_prefill", "look_ahead"), ("target_prefill",)
# A run that spends time in these phases does more than scoring and prefill, whose operations are counted.
UNCOUNTED_PHASES = ("mapping", "checkpoints")


def known_peak(device_name: str, dtype: torch.dtype) -> float | None:
    """The TFLOP/s of a device in a dtype, by its name; None where that is not in the table."""
    if dtype.itemsize != 2:
        return None
    # Whole words: an RTX A4000 is no A40.
    return next((peak for words, peak in PEAKS.items() if re.search(rf"\b{words}\b", device_name)), None)


def peak_of(pair: LoadedPair, given: float | None = None) -> float | None:
    """The TFLOP/s of the pair's devices, all ranks' together; None where they are not known.

    given: of one device, where the user knows it
    """
    import torch

    devices = pair.devices
    single = given
    if single is None and all(device.type == "cuda" for device in devices):
        names = {torch.cuda.get_device_name(device) for device in devices}
        peaks = {known_peak(name, pair.loaded_target.model.dtype) for name in names}
        single = peaks.pop() if len(peaks) == 1 else None
    return None if single is None else single * max(pair.ranks.size, len(devices))


def counted_tflop(stream: AnswerStream) -> dict[str, float]:
    """The operations of draft and target in a run's prefill, in TFLOP; empty where it did more than is counted."""
    request, plan, mode = stream.request, stream.prefilled.plan, stream.resolved.mode
    if any(request.clock.phases()[name] for name in UNCOUNTED_PHASES) or stream.prefilled.reused:
        return {}
    tokens = plan.prompt_tokens if mode == BASELINE else plan.kept_tokens
    operations = {"target_prefill": cost_of(request.pair.target).prefill_flops(tokens)}
    if MODES[mode].uses_draft and SCORERS[request.scorer].uses_draft:
        operations["draft_prefill"] = SCORERS[request.scorer].cost(request)
    return {name: flops / 1e12 for name, flops in operations.items()}


def achieved_tflops(tflop: Mapping[str, float], phases: Mapping[str, float]) -> dict[str, float]:
    """TFLOP/s by model, from operations and the seconds of every phase; look-ahead counts with the draft."""
    groups = {"draft_prefill": DRAFT_PHASES, "target_prefill": TARGET_PHASES}
    times = {name: sum(phases.get(phase, 0.0) for phase in groups[name]) for name in tflop}
    return {name: amount / times[name] for name, amount in tflop.items() if times[name] > 0}

"""Probes of the check, each in its own process: `python -m specprefill_cli.lab.gpu_check.probes PROBE [ARGUMENTS]`.

Each probe prints a JSON object with `rows`.
"""

import platform
import shutil
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import CausalBias

from specprefill_cli import diagnostics
from specprefill_cli.cli.console import print_json
from specprefill_cli.lab.benchmarks.decode import bench_decode
from specprefill_cli.lab.benchmarks.prefill import QUESTION, bench_prefill, prompt_of_length
from specprefill_cli.lab.benchmarks.shapes import named_config, shape_pair, shaped_session
from specprefill_cli.lab.evaluation.runner import Configuration
from specprefill_cli.models.machine.cost import ModelCost
from specprefill_cli.models.machine.placement import choose_dtype, choose_placement
from specprefill_cli.models.running import attention
from specprefill_cli.models.running.adapter import synchronize
from specprefill_cli.models.running.attention_plan import AttentionDevice, LocalWindow
from specprefill_cli.models.running.passes import PositionContext
from specprefill_cli.settings import AUTO, OFF, Settings

Rows = list[dict[str, Any]]
# Cache slots in the attention probe.
KEYS = 4_096
# Tokens decoded while counting synchronisations, and the key of a row's fault.
DECODED, FAULT = 16, "fault"
QUERY = "nvidia-smi", "--query-gpu=name,driver_version,memory.total,memory.free", "--format=csv,noheader"
# Parts of the names of operators and kernels that compute attention.
ATTENTION_WORDS = ("flash", "efficient_attention", "cudnn_attention", "attention_math", "fmha")


def environment() -> Rows:
    """Versions of torch, its libraries and the driver, and the devices with their memory."""
    findings = [*diagnostics.check_versions(), *diagnostics.list_devices()]
    rows = [{"what": finding.name, "state": str(finding.state), "detail": finding.detail} for finding in findings]
    facts: dict[str, object] = {"torch": torch.__version__, "machine": platform.machine()}
    if torch.cuda.is_available():
        facts |= {
            "CUDA": torch.version.cuda,
            "ROCm": torch.version.hip,
            "cuDNN": torch.backends.cudnn.version(),
            "flash attention built": torch.backends.cuda.is_flash_attention_available(),
            "bfloat16": torch.cuda.is_bf16_supported(),
        }
        for number in range(torch.cuda.device_count()):
            facts[f"cuda:{number} capability"] = torch.cuda.get_device_capability(number)
    if shutil.which(QUERY[0]):
        facts["nvidia-smi"] = subprocess.run(QUERY, capture_output=True, text=True, check=False, timeout=20).stdout
    return rows + [{"what": name, "state": "", "detail": str(fact)} for name, fact in facts.items() if fact is not None]


def passes() -> Iterator[tuple[str, PositionContext]]:
    """Yield each kind of pass over a cache of KEYS slots, with its position context."""
    keys = torch.arange(KEYS)
    half = KEYS // 2
    yield "first pass", PositionContext(keys, keys)
    yield "second pass", PositionContext(keys[half:], keys)
    yield "kept tokens", PositionContext(keys[::8], keys[::8])
    yield "decoding", PositionContext(keys[-1:], keys)
    yield "verification", PositionContext(keys[-5:], keys)
    yield "recompute", PositionContext(keys[100:half:3], keys)
    yield "draft window", PositionContext(keys, keys, local_window=LocalWindow(half // 2, KEYS - 32))


def kernels(shapes: str) -> Rows:
    """Which fused attention accepts each pass of the pair, which kernels ran, and the milliseconds of a layer's attention."""
    placement = choose_placement("auto")
    device = f"cuda:{placement.gpus[0]}" if placement.gpus else placement.device_type
    attention.avoid_cudnn(placement.device_type)
    rows = []
    for role, name in zip(("draft", "target"), shape_pair(shapes), strict=True):
        config = named_config(name, role)
        cost, dtype = ModelCost.of(config), choose_dtype("auto", placement, config)
        for situation, context in passes():
            queries, slots = len(context.query_positions), len(context.key_positions)
            query = torch.randn(1, cost.heads, queries, cost.head_size, device=device, dtype=dtype)
            key, value = torch.randn(2, 1, cost.key_value_heads, slots, cost.head_size, device=device, dtype=dtype)
            call = attention_call(query, key, value, context)
            rows.append({"model": role, "pass": situation, "queries": queries, "dtype": str(dtype)} | call)
    return rows


def missing_flash(device: AttentionDevice) -> str | None:
    """The fault of a GPU whose flash attention should work but does not; None if there is no fault."""
    if device.has_flash or not replace(device, flash_works=True).has_flash:
        return None
    return (
        f"flash attention is off on a GPU of capability {device.capability} in {device.dtype} with heads of "
        f"{device.head_size}: models/running/attention.py refused it"
    )


def attention_call(query: Tensor, key: Tensor, value: Tensor, context: PositionContext) -> dict[str, Any]:
    """Run a layer's attention: its plan, the backends that accept its first segment, the operators, milliseconds."""
    accepting: list[dict[str, str]] = []

    def record_backends(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        accepting.append(backends(query, key, value, **options))
        return F.scaled_dot_product_attention(query, key, value, **options)

    device_description = attention.device_capabilities(query.device, query.dtype, query.shape[-1])
    plan = context.plan(None, device_description)

    def run() -> None:
        for segment in plan.segments:
            attention.attend_segment(query, key, value, segment, plan, context, query.shape[-1] ** -0.5)
        synchronize([query.device])

    with patch.object(attention, "F", SimpleNamespace(scaled_dot_product_attention=record_backends)):
        run()
    with torch.profiler.profile() as profile:
        run()
    events = {event.key for event in profile.key_averages()}
    started = time.perf_counter()
    run()
    return {
        "mask": plan.segments[0].mask.name.lower(),
        "segments": len(plan.segments),
        "heads": "repeated" if plan.expand_kv_heads else "grouped",
        **accepting[0],
        "ran": ", ".join(sorted(name[:80] for name in events if any(word in name for word in ATTENTION_WORDS))),
        "ms": 1000 * (time.perf_counter() - started),
        FAULT: missing_flash(device_description),
    }


def backends(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Any, is_causal: bool, scale: float, enable_gqa: bool
) -> dict[str, str]:
    """Whether each of torch's fused CUDA backends accepts a call; a lower-right causal bias reaches them as a flag."""
    if not query.is_cuda:
        return {}
    mask = None if isinstance(attn_mask, CausalBias) else attn_mask
    described: Any = torch.backends.cuda.SDPAParams
    parameters = described(query, key, value, mask, 0.0, is_causal, enable_gqa)
    accepts: dict[str, Callable[[Any], bool]] = {
        "flash": torch.backends.cuda.can_use_flash_attention,
        "efficient": torch.backends.cuda.can_use_efficient_attention,
        "cudnn": torch.backends.cuda.can_use_cudnn_attention,
    }
    return {name: "yes" if check(parameters) else "no" for name, check in accepts.items()}


def cudnn(shapes: str, length: str) -> Rows:
    """TTFT and decoding speed with cuDNN's attention off, on, and off again, with the same weights."""
    base = Settings(max_new_tokens=32, speculate=OFF)
    session = shaped_session(shapes, base)
    cases = [Configuration("full"), Configuration("select", 0.1, AUTO).resolve(session)]
    rows = []
    for enabled in (False, True, False):
        torch.backends.cuda.enable_cudnn_sdp(enabled)
        measured = bench_prefill(session, [int(length)], cases, 2, base.varied(max_new_tokens=1), ignore)
        (decoded,) = bench_decode(session, min(int(length), KEYS), ["quote"], [OFF], 1, base, ignore)
        rows += [{"cudnn": "on" if enabled else "off", **row} for row in measured]
        rows[-1]["decoding_tokens_per_second"] = decoded["tokens_per_second"]
    return rows


def synchronisations(shapes: str, length: str) -> Rows:
    """Where the host waits for the GPU: in a prefill by `select`, and in plain and speculative decoding after it."""
    base = Settings(mode="select", scorer="question", keep=0.1, max_new_tokens=DECODED)
    session = shaped_session(shapes, base)
    collection = prompt_of_length(session, int(length), base)
    rows = []
    for speculate in (OFF, 4):
        settings = base.varied(speculate=speculate)
        # Warm up: the first answer loads libraries.
        session.ask(collection, QUESTION, settings).finished()
        with watch_synchronisations() as prefill:
            stream = session.ask(collection, QUESTION, settings)
        with watch_synchronisations() as decoding:
            stream.finished()
        rows += count_synchronisations("prefill", prefill) if speculate == OFF else []
        rows += count_synchronisations(f"{DECODED} tokens, --speculate {speculate}", decoding)
    return rows


@contextmanager
def watch_synchronisations() -> Iterator[list[warnings.WarningMessage]]:
    """Collect torch's warnings of operations that wait for a CUDA device, during the block."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield caught
        finally:
            torch.cuda.set_sync_debug_mode("default")


def count_synchronisations(situation: str, caught: Sequence[warnings.WarningMessage]) -> Rows:
    """A row for each line of code that waits for the device, the most frequent first."""
    places = Counter(
        f"{'/'.join(Path(warning.filename).parts[-3:])}:{warning.lineno}"
        for warning in caught
        if "synchronizing CUDA operation" in str(warning.message)
    )
    return [{"situation": situation, "times": times, "place": place} for place, times in places.most_common()]


def ignore(_step: str) -> None:
    """Show no progress."""


def run_probe(name: str, *arguments: str) -> None:
    """Print a probe's rows; exit with code 1 if any row has a fault."""
    rows = PROBES[name](*arguments)
    print_json({"rows": rows})
    faults = dict.fromkeys(row[FAULT] for row in rows if row.get(FAULT))
    if faults:
        sys.exit("\n".join(faults))


PROBES: Mapping[str, Callable[..., Rows]] = {
    "environment": environment,
    "kernels": kernels,
    "cudnn": cudnn,
    "synchronisations": synchronisations,
}

if __name__ == "__main__":
    run_probe(*sys.argv[1:])

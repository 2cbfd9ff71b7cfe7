"""Where models run and in which dtype."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from specprefill_cli.errors import SpecprefillError, UsageError

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig

    from specprefill_cli.distributed.ranks import Ranks

WEIGHTS_SHARE = 0.8
# Before it, decoding behind long prompts read wrong memory there (pytorch issue 174861).
SOUND_ON_MPS = Version("2.11")
DTYPES = ("auto", "float32", "bfloat16", "float16")
# Below this hidden size a CPU computes in float32 even where it multiplies bfloat16 faster. `tiny` is 1.4 to 1.6 times as fast
# in bfloat16 and answers as well (300 dev questions, its fifth version: F1 34.0 against 34.5, 286 the same), but speculation
# then no longer keeps every greedy token: rounding decides near-ties (1 answer of the 300). Larger ones are not measured.
SMALLEST_BFLOAT16_HIDDEN = 1_024


@dataclass(frozen=True)
class Placement:
    """Arguments for loading: `device_map` for accelerate (None: plain CPU) and the memory it may use, in bytes.

    shards: ranks that each hold a share of a target; a draft is whole on every rank
    """

    device_map: str | dict | None
    max_memory: dict | None = None
    shards: int = 1

    @property
    def device_type(self) -> str:
        """The kind of device: "cpu", "cuda" or "mps"."""
        if isinstance(self.device_map, dict):
            return self.device_map[""].partition(":")[0]
        return "cpu" if self.device_map is None else "cuda"

    @property
    def gpus(self) -> tuple[int, ...]:
        """Numbers of the CUDA devices that it names."""
        if self.device_type != "cuda":
            return ()
        if self.max_memory:
            return tuple(place for place in self.max_memory if place != "cpu")
        return (int(self.device_map[""].partition(":")[2]),)


def choose_placement(devices: str) -> Placement:
    """Placement for `auto` (all GPUs, and main memory for what they cannot hold), `cpu`, or a list such as `cuda:0,cuda:1`.

    accelerate spreads a model over several. An Apple GPU is taken by name only (`mps`): nothing was ever measured on one.

    Raises UsageError for a device that is not there.
    """
    import torch

    if devices == "auto":
        if torch.cuda.is_available():
            return spread(range(torch.cuda.device_count()), with_cpu=True)
        return Placement(None)
    names = [name.strip() for name in devices.split(",") if name.strip()]
    if names == ["cpu"]:
        return Placement(None)
    if names == ["mps"] and torch.backends.mps.is_available():
        if Version(torch.__version__) < SOUND_ON_MPS:
            raise UsageError(
                f"--devices mps: needs torch {SOUND_ON_MPS} or newer, this is {torch.__version__}; use cpu"
            )
        return Placement({"": "mps"})
    visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for name in names:
        kind, _, number = name.partition(":")
        if kind != "cuda" or not number.isdigit() or int(number) >= visible:
            raise UsageError(
                f"--devices {devices}: '{name}' is not here ({visible} CUDA device(s) visible); "
                "use auto, cpu, or a list such as cuda:0,cuda:1"
            )
    if not names:
        raise UsageError("--devices: empty; use auto, cpu, or a list such as cuda:0,cuda:1")
    if len(names) == 1:
        return Placement({"": names[0]})
    return spread([int(name.partition(":")[2]) for name in names])


def place_of_rank(devices: str, ranks: Ranks) -> Placement:
    """Where a rank holds its share of the target: on the GPU of its number, or on the CPU where there is none.

    Raises UsageError for devices that were chosen by name: transformers takes these.
    """
    import torch

    if devices != "auto" and (devices != "cpu" or torch.cuda.is_available()):
        raise UsageError(
            f"--devices {devices}: with tensor parallel each rank takes the GPU of its number; leave it out, and set "
            "CUDA_VISIBLE_DEVICES to choose"
        )
    return Placement({"": f"cuda:{ranks.local}"} if torch.cuda.is_available() else None, shards=ranks.size)


def spread(gpus: Iterable[int], with_cpu: bool = False) -> Placement:
    """Over these GPUs, leaving a fifth of their free memory for KV cache and activations.

    with_cpu: what does not fit them stays in main memory, from where every pass brings it
    """
    import psutil
    import torch

    room = {gpu: torch.cuda.mem_get_info(gpu)[0] for gpu in gpus}
    if with_cpu:
        room["cpu"] = psutil.virtual_memory().available
    return Placement("auto", {place: int(WEIGHTS_SHARE * free) for place, free in room.items()})


def roomiest(placement: Placement) -> Placement:
    """The one GPU with most free memory among those of a placement: a draft is too small to be spread.

    Nor is it divided among ranks: in each of its short passes they would wait longer for each other than they save.
    """
    import torch

    if placement.shards > 1:
        return replace(placement, shards=1)
    if placement.device_map != "auto":
        return placement
    free = {gpu: torch.cuda.mem_get_info(gpu)[0] for gpu in placement.gpus}
    return Placement({"": f"cuda:{max(free, key=free.get)}"})


def how_to_place(placement: Placement) -> dict[str, Any]:
    """The arguments of `from_pretrained` that say where weights go."""
    if placement.shards == 1:
        return {"device_map": placement.device_map, "max_memory": placement.max_memory}
    from transformers import DistributedConfig

    return {"distributed_config": DistributedConfig(tp_size=placement.shards, tp_plan="auto")}


def check_shards(config: PretrainedConfig, name: str, shards: int) -> None:
    """Raises SpecprefillError for a model whose attention heads cannot be divided evenly among so many ranks."""
    from specprefill_cli.models.raw_kv import divides_heads

    text = config.get_text_config()
    heads = text.num_attention_heads
    key_value_heads = getattr(text, "num_key_value_heads", None) or heads
    if divides_heads(config) and (heads % shards or key_value_heads % shards):
        most = math.gcd(heads, key_value_heads)
        fitting = [str(number) for number in range(1, most + 1) if most % number == 0]
        raise SpecprefillError(
            f"{name}: its {heads} attention heads and {key_value_heads} key-value heads cannot be divided among {shards} "
            f"ranks; use --tensor-parallel {' or '.join(fitting)}"
        )


def choose_dtype(name: str, placement: Placement, hidden_size: int, model_type: str = "") -> torch.dtype:
    """The dtype behind a name; `auto` is bfloat16 on a GPU, and on a CPU where it is known to be faster.

    On NVIDIA cards before Ampere `auto` is float16, but for Gemma models, whose states grow beyond its range: no fused
    attention takes bfloat16 there, and the other one builds all scores.

    Raises UsageError for an unknown name.
    """
    import torch

    if name not in DTYPES:
        raise UsageError(f"--dtype {name}: unknown; use one of {', '.join(DTYPES)}")
    if name != "auto":
        return getattr(torch, name)
    if placement.device_map is not None:
        recent = all(torch.cuda.get_device_capability(gpu) >= (8, 0) for gpu in placement.gpus)
        return torch.bfloat16 if recent or model_type.startswith("gemma") else torch.float16
    return torch.bfloat16 if hidden_size >= SMALLEST_BFLOAT16_HIDDEN and cpu_has_bfloat16() else torch.float32


def cpu_has_bfloat16() -> bool:
    """Whether the CPU multiplies bfloat16 in hardware (AVX512-BF16 or AMX)."""
    import torch

    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, check, lambda: False)() for check in checks)

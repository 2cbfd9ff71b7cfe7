"""The devices and the dtype of models."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import DistributedConfig, PretrainedConfig

from specprefill_cli.distributed import Ranks
from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.models.machine.cost import ModelCost
from specprefill_cli.models.machine.memory_plan import GIBIBYTE, WEIGHTS_SHARE, free_memory, weight_bytes
from specprefill_cli.models.machine.quantization import NONE, checkpoint_method, cpu_has_bfloat16
from specprefill_cli.models.running.int8 import PROCESSOR
from specprefill_cli.settings import AUTO

# Below this hidden size a CPU computes in float32 even where bfloat16 is faster: the time saved is small, and rounding
# decides near-ties, so that speculative decoding no longer keeps every greedy token.
SMALLEST_BFLOAT16_HIDDEN = 512


@dataclass(frozen=True)
class Placement:
    """Where a model is loaded.

    device_map: for accelerate ("auto", or a device for the module ""); None: the CPU
    max_memory: bytes that accelerate may use on each GPU, by its number
    shards: ranks that each hold a part of a model; packed: whether large GGUF files are kept and run in int8
    """

    device_map: str | dict[str, str] | None
    max_memory: dict[int, int] | None = None
    shards: int = 1
    packed: bool = False

    @property
    def device_type(self) -> str:
        """The kind of device: "cpu" or "cuda"."""
        return "cpu" if self.device_map is None else "cuda"

    @property
    def gpus(self) -> tuple[int, ...]:
        if isinstance(self.device_map, dict):
            return (int(self.device_map[""].partition(":")[2]),)
        return tuple(self.max_memory or ())


def stored_placement(placement: Placement, name: str, adapter: str | None = None) -> Placement:
    """A placement that says whether large GGUF files are kept and run in int8 under a `--quantization`.

    They are on a CPU, by default where that is faster, but never below an adapter, which changes whole weights.
    """
    is_wanted = name == "int8" or (name == AUTO and PROCESSOR.startswith("AVX"))
    is_possible = placement.device_type == "cpu" and placement.shards == 1 and adapter is None
    return replace(placement, packed=is_wanted and is_possible)


def choose_placement(devices: str) -> Placement:
    """Placement for `auto` (GPUs, else the CPU), `cpu`, or `cuda:0,cuda:1`. Raises UsageError for a missing device."""
    if devices == "auto":
        return spread(range(torch.cuda.device_count())) if torch.cuda.is_available() else Placement(None)
    names = [name.strip() for name in devices.split(",") if name.strip()]
    if names == ["cpu"]:
        return Placement(None)
    visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for name in names or [""]:
        device_type, _, number = name.partition(":")
        if device_type != "cuda" or not number.isdigit() or int(number) >= visible:
            raise UsageError(
                f"--devices {devices}: '{name}' is not here ({visible} CUDA device(s) visible); "
                "use auto, cpu, or a list such as cuda:0,cuda:1"
            )
    if len(names) == 1:
        return Placement({"": names[0]})
    return spread([int(name.partition(":")[2]) for name in names])


def place_of_rank(devices: str, ranks: Ranks) -> Placement:
    """Where a rank's part of the target goes: to the GPU of its number. Raises UsageError for devices named."""
    if devices != "auto" and (devices != "cpu" or torch.cuda.is_available()):
        raise UsageError(
            f"--devices {devices}: with tensor parallelism each rank takes the GPU of its number; leave it out, and "
            "choose GPUs with CUDA_VISIBLE_DEVICES"
        )
    return Placement({"": f"cuda:{ranks.local}"} if torch.cuda.is_available() else None, shards=ranks.size)


def spread(gpus: Iterable[int]) -> Placement:
    """Placement over several GPUs."""
    return Placement("auto", {gpu: int(WEIGHTS_SHARE * torch.cuda.mem_get_info(gpu)[0]) for gpu in gpus})


def prefer_one_gpu(placement: Placement, needed: int) -> Placement:
    """Narrow a spread placement to the first GPU with room for `needed` bytes, if any: a pass over several waits for copies."""
    gpus = placement.max_memory or {}
    # On an only GPU, too, accelerate would leave layers on the disk.
    gpu = next((gpu for gpu, room in gpus.items() if room >= needed or len(gpus) == 1), None)
    return placement if gpu is None else Placement({"": f"cuda:{gpu}"})


def draft_placement(placement: Placement) -> Placement:
    """Where a draft goes: whole on the emptiest GPU, because it is too small to be spread over GPUs or ranks."""
    if placement.device_map != "auto":
        return replace(placement, shards=1)
    return Placement({"": f"cuda:{max(placement.gpus, key=lambda gpu: torch.cuda.mem_get_info(gpu)[0])}"})


def how_to_place(placement: Placement) -> dict[str, Any]:
    """The arguments of `from_pretrained` that place a model's weights."""
    if placement.shards == 1:
        return {"device_map": placement.device_map, "max_memory": placement.max_memory}
    return {"distributed_config": DistributedConfig(tp_size=placement.shards)}


def check_divisible(placement: Placement, config: PretrainedConfig, name: str) -> None:
    """Raises SpecprefillError for a target whose key-value heads cannot be divided evenly among its ranks."""
    ranks, heads = placement.shards, ModelCost.of(config).key_value_heads
    plan = getattr(config.get_text_config(), "base_model_tp_plan", None) or {}
    # With fused projections (Phi-3) every rank computes all heads.
    is_divided = any(style == "colwise" and part.endswith(("k_proj", "qkv_proj")) for part, style in plan.items())
    if is_divided and heads % ranks:
        fitting = [str(number) for number in range(1, heads + 1) if heads % number == 0]
        raise SpecprefillError(
            f"{name}: its key-value heads ({heads}) cannot be divided evenly among {ranks} ranks; use --tensor-parallel "
            f"{' or '.join(fitting)}"
        )


def choose_dtype(name: str, placement: Placement, config: PretrainedConfig) -> torch.dtype:
    """The dtype of a name; `auto` is bfloat16 on GPUs, and on CPUs that multiply it from some size on."""
    if name != "auto":
        return getattr(torch, name)
    if placement.device_map is not None:
        # No fused attention takes bfloat16 before Ampere; Gemma's hidden states exceed the range of float16.
        # All ranks must choose alike.
        gpus = placement.gpus if placement.shards == 1 else range(torch.cuda.device_count())
        recent = all(torch.cuda.get_device_capability(gpu) >= (8, 0) for gpu in gpus)
        return torch.bfloat16 if recent or config.model_type.startswith("gemma") else torch.float16
    return torch.bfloat16 if config.hidden_size >= SMALLEST_BFLOAT16_HIDDEN and cpu_has_bfloat16() else torch.float32


def check_memory(
    config: PretrainedConfig, name: str, placement: Placement, dtype: torch.dtype, quantization: str = NONE
) -> None:
    """Raises SpecprefillError for weights that do not fit the GPUs of a spread placement, or main memory."""
    # On a CPU the bytes of packed weights are not known before loading.
    on_cpu = placement.device_type == "cpu" and placement.shards == 1 and checkpoint_method(config) is None
    if not on_cpu and not placement.max_memory:
        return
    needed = weight_bytes(config, dtype, quantization)
    free = sum(placement.max_memory.values()) if placement.max_memory else free_memory(torch.device("cpu"))
    if needed > free:
        raise SpecprefillError(
            f"{name}: its weights take {needed / GIBIBYTE:.1f} GiB in {str(dtype).removeprefix('torch.')}, and "
            f"{free / GIBIBYTE:.1f} GiB of memory are free; use a smaller model or --dtype bfloat16"
        )

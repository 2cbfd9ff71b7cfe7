"""Targets with quantised weights: by transformers while loading, from the checkpoint, or in 8 bits on a CPU.

Decoding on a CPU is bound by reading the weights, and int8 is a quarter of float32's bytes.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BitsAndBytesConfig, FineGrainedFP8Config, PretrainedConfig, PreTrainedModel, utils
from transformers.utils.quantization_config import QuantizationConfigMixin

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.installation import install_command

if TYPE_CHECKING:
    from specprefill_cli.models.placement import Placement

NONE = "none"
# Values of each weight that a model's fingerprint covers, and the attribute that holds them by name where weights were packed.
SAMPLED, UNPACKED = 16, "unpacked_samples"
# Rows up to which a product with packed weights is faster than one with weights unpacked for it.
FEW_ROWS = 24
# The first GPUs that multiply FP8: Ada and Hopper. On older ones transformers would silently unpack to bfloat16.
FP8_CAPABILITY = (8, 9)


# What transformers needs to quantise while loading, and bytes of a quantised weight, its share of the scales included:
# nf4 has 4 bits and 0.127 for the scales (arXiv 2305.14314, section 3).
PACKAGES = {"int8": "bitsandbytes", "nf4": "bitsandbytes", "fp8": "kernels"}
BYTES_PER_WEIGHT = {"int8": 1.0, "nf4": 4.127 / 8, "fp8": 1.0}


def scheme_config(name: str, dtype: torch.dtype) -> QuantizationConfigMixin:
    """The argument of `from_pretrained` for one of `PACKAGES`; dtype: to compute in."""
    if name == "fp8":
        # A scale for each block of 128 x 128 weights.
        return FineGrainedFP8Config()
    if name == "int8":
        # LLM.int8() (arXiv 2208.07339). In any dtype but float16 it warns of a cast in every layer of every pass.
        logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
        return BitsAndBytesConfig(load_in_8bit=True)
    # 4-bit NormalFloat with quantised scales (QLoRA, arXiv 2305.14314).
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )


def is_usable(package: str) -> bool:
    """Whether a package is installed in a version that transformers can use."""
    return getattr(utils, f"is_{package}_available")()


def check_quantization(name: str, placement: Placement) -> None:
    """Raises SpecprefillError for a missing device or package, before any download."""
    if name == NONE:
        return
    if placement.device_type != "cuda":
        # After loading, and by `quantize_on_cpu`, whose weights ranks cannot divide.
        if (name, placement.device_type, placement.shards) == ("int8", "cpu", 1):
            return
        raise SpecprefillError(
            f"--quantization {name} needs a CUDA device, and the target would run on {placement.device_type}; "
            "use int8 without --tensor-parallel, or leave it out"
        )
    if not is_usable(PACKAGES[name]):
        raise SpecprefillError(
            f"--quantization {name} needs the package {PACKAGES[name]} in a version that transformers can use; "
            f"install it with {install_command('quantization')}"
        )
    if name == "fp8":
        check_fp8(placement)


def check_fp8(placement: Placement) -> None:
    """Raises SpecprefillError for a GPU that cannot multiply FP8."""
    for gpu in placement.gpus:
        capability = torch.cuda.get_device_capability(gpu)
        if capability < FP8_CAPABILITY:
            required, actual = (".".join(map(str, version)) for version in (FP8_CAPABILITY, capability))
            raise SpecprefillError(
                f"--quantization fp8 needs GPUs of compute capability {required} or newer, cuda:{gpu} has {actual}; "
                "use int8 or nf4"
            )


def quantization_config(
    name: str, config: PretrainedConfig, model: str, dtype: torch.dtype
) -> QuantizationConfigMixin | None:
    """The argument of `from_pretrained` for a model; None for `none`, and then a quantised checkpoint loads as it is.

    Raises SpecprefillError for a scheme on top of a quantised checkpoint.
    """
    method = checkpoint_method(config)
    if name != NONE and method is not None:
        raise SpecprefillError(f"{model}: quantised already ({method}); leave out --quantization {name}")
    return None if name == NONE else scheme_config(name, dtype)


def checkpoint_bits(config: PretrainedConfig) -> int | None:
    """Bits of a packed weight in a quantised checkpoint, 8 where it does not say; None for a plain one."""
    values = checkpoint_values(config)
    return int(values.get("bits") or (4 if values.get("load_in_4bit") else 8)) if values else None


def checkpoint_method(config: PretrainedConfig) -> str | None:
    """How the weights of a checkpoint are quantised, as its configuration says; None where they are not."""
    values = checkpoint_values(config)
    return str(values.get("quant_method") or "bitsandbytes") if values else None


def checkpoint_values(config: PretrainedConfig) -> dict[str, Any]:
    """The quantization settings of a checkpoint; empty for a plain one."""
    stored = getattr(config, "quantization_config", None) or {}
    return stored if isinstance(stored, dict) else stored.to_dict()


class Int8Linear(nn.Module):
    """A linear layer with int8 weights [out, in] and one scale for each output, which may be of any float dtype."""

    packed: Tensor
    scales: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.data.float()
        # Rounded first: torch's kernel takes scales in bfloat16, and an error in one would be that of a whole output.
        scales = (weight.abs().amax(1).clamp(min=1e-12) / 127).bfloat16()
        packed = (weight / scales.float()[:, None]).round_().clamp_(-127, 127).to(torch.int8)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.register_buffer("packed", packed)
        self.register_buffer("scales", scales)
        self.bias = linear.bias

    def forward(self, states: Tensor) -> Tensor:
        """States [..., in] -> [..., out] in their dtype."""
        rows = states.reshape(-1, self.in_features)
        if len(rows) > FEW_ROWS:
            weight = self.packed.to(states.dtype).mul_(self.scales[:, None])
            return F.linear(states, weight, self.bias)
        output = torch._weight_int8pack_mm(rows.bfloat16(), self.packed, self.scales).to(states.dtype)
        output = output.view(*states.shape[:-1], self.out_features)
        return output if self.bias is None else output + self.bias


def quantize_on_cpu(model: PreTrainedModel) -> None:
    """Replace all linear layers of a model on the CPU, that of the vocabulary too; embeddings stay as they are.

    What was calibrated for its weights still belongs to it.
    """
    flat = {name: weight.detach().flatten() for name, weight in model.named_parameters()}
    setattr(
        model, UNPACKED, {name: row[:: max(1, len(row) // SAMPLED)][:SAMPLED].clone() for name, row in flat.items()}
    )
    parents: list[tuple[Any, str, nn.Linear]] = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.Linear)
    ]
    for parent, name, linear in parents:
        setattr(parent, name, Int8Linear(linear))

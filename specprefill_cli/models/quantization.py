"""Quantised targets: bitsandbytes packs weights on a GPU while they load, `quantize_on_cpu` packs int8 after loading.

Decoding on a CPU is bound by reading the weights, and int8 is a quarter of float32's bytes.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BitsAndBytesConfig, PretrainedConfig, PreTrainedModel, utils

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.installation import pip_command

NONE = "none"
# Values of each weight that a model's fingerprint covers, and the attribute that holds them once weights are packed.
SAMPLED, UNPACKED = 16, "unpacked_samples"
# Rows up to which a product with packed weights is faster than with weights unpacked for it.
FEW_ROWS = 24
# Bytes of a quantised weight, its share of the scales included: nf4 has 4 bits and 0.127 for the scales (arXiv
# 2305.14314, section 3).
BYTES_PER_WEIGHT = {"int8": 1.0, "nf4": 4.127 / 8}


def check_quantization(name: str, device_type: str, shards: int) -> None:
    """Raises SpecprefillError for a missing device or package, before any download. shards: ranks that divide the target."""
    # On a CPU `quantize_on_cpu` does without the package; ranks cannot divide its weights.
    if name == NONE or (name, device_type, shards) == ("int8", "cpu", 1):
        return
    if device_type != "cuda":
        raise SpecprefillError(
            f"--quantization {name} needs a CUDA device, and the target would run on {device_type}; "
            "use int8 without --tensor-parallel, or leave it out"
        )
    if not utils.is_bitsandbytes_available():
        raise SpecprefillError(
            f"--quantization {name} needs the package bitsandbytes in a version that transformers can use; "
            f"install it with {pip_command('--upgrade', 'bitsandbytes')}"
        )


def quantization_config(
    name: str, config: PretrainedConfig, model: str, dtype: torch.dtype
) -> BitsAndBytesConfig | None:
    """The argument of `from_pretrained` for a model; None for `none`: a quantised checkpoint then loads as it is.

    dtype: to compute in

    Raises SpecprefillError for a checkpoint that is quantised already.
    """
    if name == NONE:
        return None
    method = checkpoint_method(config)
    if method is not None:
        raise SpecprefillError(f"{model}: quantised already ({method}); leave out --quantization {name}")
    if name == "int8":
        # LLM.int8() (arXiv 2208.07339). In any dtype but float16, bitsandbytes warns of a cast in every layer of every pass.
        logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
        return BitsAndBytesConfig(load_in_8bit=True)
    # 4-bit NormalFloat with quantised scales (QLoRA, arXiv 2305.14314).
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )


def checkpoint_method(config: PretrainedConfig) -> str | None:
    """How the weights of a checkpoint are quantised, as its configuration says; None where they are not."""
    quantization = checkpoint_values(config)
    return str(quantization.get("quant_method") or "bitsandbytes") if quantization else None


def packed_bytes(name: str, config: PretrainedConfig) -> float | None:
    """Bytes of a packed weight: of a quantised checkpoint, else of the quantization `name`; None where nothing is packed."""
    quantization = checkpoint_values(config)
    if quantization:
        return int(quantization.get("bits") or (4 if quantization.get("load_in_4bit") else 8)) / 8
    return BYTES_PER_WEIGHT.get(name)


def checkpoint_values(config: PretrainedConfig) -> dict[str, Any]:
    """The quantization settings of a checkpoint; empty where it is not quantised."""
    stored = getattr(config, "quantization_config", None) or {}
    return stored if isinstance(stored, dict) else stored.to_dict()


class Int8Linear(nn.Module):
    """A linear layer with int8 weights [out, in] and a scale for each output."""

    packed: Tensor
    scales: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.data.float()
        # Rounded before packing: torch's kernel takes scales in bfloat16, and a rounding error would scale a whole output.
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
    """Replace all linear layers of a model on the CPU, the vocabulary's too; embeddings stay as they are.

    Calibrations of the unpacked weights still apply: their fingerprint is that of the samples kept here.
    """
    flat_weights = {name: weight.detach().flatten() for name, weight in model.named_parameters()}
    samples = {name: flat[:: max(1, len(flat) // SAMPLED)][:SAMPLED].clone() for name, flat in flat_weights.items()}
    setattr(model, UNPACKED, samples)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            model.set_submodule(name, Int8Linear(module))

"""Quantised targets: which ways are open on a device, and what the processor multiplies in hardware."""

import logging
from typing import Any

import torch
from transformers import BitsAndBytesConfig, PretrainedConfig, utils

from specprefill_cli.errors import SpecprefillError, pip_command
from specprefill_cli.settings import AUTO

NONE = "none"
# torch's checks for instructions that multiply bfloat16.
BFLOAT16_CHECKS = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
# Bytes of a quantised weight, its share of the scales included: nf4 has 4 bits and 0.127 for the scales (arXiv
# 2305.14314, section 3).
BYTES_PER_WEIGHT = {"int8": 1.0, "nf4": 4.127 / 8}


def check_quantization(name: str, device_type: str, shards: int) -> None:
    """Raises SpecprefillError for a missing device or package, before any download. shards: ranks that divide the target."""
    # On a CPU `quantize_on_cpu` does without the package; ranks cannot divide its weights.
    if name in (NONE, AUTO) or (name, device_type, shards) == ("int8", "cpu", 1):
        return
    if shards > 1:
        raise SpecprefillError(
            f"--quantization {name}: ranks cannot divide quantised weights; leave out --tensor-parallel"
        )
    if device_type != "cuda":
        raise SpecprefillError(
            f"--quantization {name} needs a CUDA device, and the target would run on {device_type}; use int8, or leave it out"
        )
    if not utils.is_bitsandbytes_available():
        raise SpecprefillError(
            f"--quantization {name} needs the package bitsandbytes in a version that transformers can use; "
            f"install it with {pip_command('--upgrade', 'bitsandbytes')}"
        )


def quantization_config(
    name: str, config: PretrainedConfig, model: str, compute_dtype: torch.dtype
) -> BitsAndBytesConfig | None:
    """The argument of `from_pretrained` for a model; None for `none`: a quantised checkpoint then loads as it is.

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
    options = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": compute_dtype}
    return BitsAndBytesConfig(load_in_4bit=True, **options)


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


def cpu_has_bfloat16() -> bool:
    """Whether the CPU multiplies bfloat16 in hardware (AVX512-BF16 or AMX)."""
    return any(getattr(torch.cpu, check, lambda: False)() for check in BFLOAT16_CHECKS)

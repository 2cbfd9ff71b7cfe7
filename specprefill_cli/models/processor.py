"""What this machine's processor computes in hardware."""

from __future__ import annotations

import torch

# torch's checks for instructions that multiply bfloat16.
BFLOAT16_CHECKS = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")


def cpu_has_bfloat16() -> bool:
    """Whether the CPU multiplies bfloat16 in hardware (AVX512-BF16 or AMX)."""
    return any(getattr(torch.cpu, check, lambda: False)() for check in BFLOAT16_CHECKS)


def cpu_multiplies_int8() -> bool:
    """Whether the CPU adds products of 8-bit integers in hardware (VNNI or AMX)."""
    checks = ("_is_vnni_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, check, lambda: False)() for check in checks)

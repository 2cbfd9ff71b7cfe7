"""What this machine's processor computes in hardware."""

from __future__ import annotations

import torch

# torch's checks for instructions that multiply bfloat16.
BFLOAT16_CHECKS = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")


def cpu_has_bfloat16() -> bool:
    """Whether the CPU multiplies bfloat16 in hardware (AVX512-BF16 or AMX)."""
    return any(getattr(torch.cpu, check, lambda: False)() for check in BFLOAT16_CHECKS)

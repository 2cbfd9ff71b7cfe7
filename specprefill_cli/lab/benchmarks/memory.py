"""What a prompt adds to the memory in use."""

from __future__ import annotations

import gc
import sys

from specprefill_cli.models.memory import PeakMemory


def growth(memory: PeakMemory) -> int | None:
    """Bytes that the peak adds to the memory in use before; None where the system does not report one."""
    peak = memory.bytes()
    return None if peak is None or memory.before is None else peak - memory.before


def return_freed_memory() -> None:
    """Collect garbage and have glibc return freed pages, so that they do not count as in use before a measurement."""
    gc.collect()
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)

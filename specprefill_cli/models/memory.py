"""The process: its peak memory (of the GPUs where there are any), the memory that it keeps, its idle threads."""

from __future__ import annotations

import re
import sys
from collections.abc import MutableMapping
from pathlib import Path

KIBIBYTE = 1_024
# Options of glibc's mallopt(3). It takes blocks above LARGEST_KEPT, its own upper limit, from the system each time.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST_KEPT, MOST_KEPT = 32 * 2**20, 512 * 2**20
# How long an idle thread spins before it sleeps: libgomp counts loops (some 0.1 ms), LLVM's OpenMP milliseconds.
BOUNDED_SPIN = {"GOMP_SPINCOUNT": "4000", "KMP_BLOCKTIME": "1"}
# A user who has set one of these has decided.
WAIT_SETTINGS = ("OMP_WAIT_POLICY", *BOUNDED_SPIN)


class PeakMemory:
    """Peak memory since it was created, or None where the system does not report one.

    before: bytes in use at its creation (program, libraries, models)
    """

    def __init__(self) -> None:
        import torch

        self.on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
        if self.on_gpu:
            for device in range(torch.cuda.device_count()):
                torch.cuda.reset_peak_memory_stats(device)
        self.known = self.on_gpu or reset_process_peak()
        self.before = self.bytes()

    def bytes(self) -> int | None:
        """The peak in bytes."""
        import torch

        if self.on_gpu:
            return sum(torch.cuda.max_memory_allocated(device) for device in range(torch.cuda.device_count()))
        return process_peak() if self.known else None


def reset_process_peak() -> bool:
    """Set Linux's resident high-water mark to the present size; False elsewhere, or where that is not allowed."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def process_peak() -> int | None:
    """Largest resident size of this process in bytes, since the last reset where Linux allows one."""
    peak = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    return int(peak[1]) * KIBIBYTE if peak else None


def keep_freed_memory() -> None:
    """Let glibc keep freed memory for the next tensors, which pays 12 % of TTFT at 4,000 tokens on a CPU.

    Otherwise pages are returned to the system and faulted in again for every tensor. Nothing happens elsewhere.
    """
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)
        libc.mallopt(M_TRIM_THRESHOLD, MOST_KEPT)


def bound_spinning(environment: MutableMapping[str, str]) -> None:
    """Let idle OpenMP threads spin only briefly, because spinning takes the cores from other programs.

    Sleeping at once would cost over 10 % of TTFT. To be called before torch is imported.
    """
    if not any(name in environment for name in WAIT_SETTINGS):
        environment.update(BOUNDED_SPIN)

"""Peak memory of a piece of work: of the GPUs where there are any, else of this process."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

KIBIBYTE = 1_024


@contextmanager
def loaded_for_good() -> Iterator[None]:
    """Spare the garbage collector what exists now, until the block ends.

    Before each answer garbage is collected; to look through all that torch, transformers and the models hold took 0.25 s
    there, as long as the answer itself where the document is known.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class PeakMemory:
    """Resets the peak when made; `bytes()` gives the peak since then, or None where the system does not tell."""

    def __init__(self) -> None:
        import torch

        self.on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
        gc.collect()
        if self.on_gpu:
            for device in range(torch.cuda.device_count()):
                torch.cuda.reset_peak_memory_stats(device)
        self.known = self.on_gpu or reset_process_peak()

    def bytes(self) -> int | None:
        import torch

        if self.on_gpu:
            return sum(torch.cuda.max_memory_allocated(device) for device in range(torch.cuda.device_count()))
        return process_peak() if self.known else None


def reset_process_peak() -> bool:
    """Give freed memory back and set Linux's resident high-water mark to the present size; False elsewhere."""
    if not sys.platform.startswith("linux"):
        return False
    import ctypes

    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        # glibc keeps freed pages; without this the peak of one measurement would hide in the next one's floor.
        libc.malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def process_peak() -> int | None:
    """Largest resident size of this process in bytes, since the last reset where Linux allows one."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * KIBIBYTE
    return None

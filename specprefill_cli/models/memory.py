"""Peak memory of a piece of work: of the GPUs where there are any, else of this process."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

KIBIBYTE = 1_024
# Options of glibc's mallopt(3), from its malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
# glibc takes larger blocks from the system directly, and gives them back at once; 32 MiB is its own upper limit for
# blocks that it learns to keep. At most MOST_KEPT bytes lie free at the heap's end.
LARGEST_KEPT, MOST_KEPT = 32 * 2**20, 512 * 2**20
# Blocks that are mapped before the first question, as large as stays.
TOUCHED_BLOCKS, TOUCHED_BLOCK = 2, LARGEST_KEPT - 2**20


@contextmanager
def loading() -> Iterator[None]:
    """Look for no garbage while libraries are imported and models loaded, and spare the collector afterwards what they left.

    Of 4.1 s from start to the first question 0.6 went into looking through ever more of what stays, and 0.15 into doing so
    once more before the answer. For programs that load once: what is garbage at the end stays, too.
    """
    # What reading the documents left; quick, as long as nothing else is loaded.
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()


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
    """Resets the peak when made; `bytes()` gives the peak since then, or None where the system does not tell.

    before: bytes in use when it was made: the program, its libraries and the models, and what was kept besides
    """

    def __init__(self) -> None:
        import torch

        self.on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
        gc.collect()
        if self.on_gpu:
            for device in range(torch.cuda.device_count()):
                torch.cuda.reset_peak_memory_stats(device)
        self.known = self.on_gpu or reset_process_peak()
        self.before = self.bytes()

    def growth(self) -> int | None:
        """What the peak adds to the memory in use before."""
        peak = self.bytes()
        return None if peak is None or self.before is None else peak - self.before

    def bytes(self) -> int | None:
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


def keep_freed_memory() -> None:
    """Let glibc keep what tensors leave behind, for the next ones: pages given back must be faulted in anew each time.

    Without it the draft of `tiny` read 16,000 tokens in 214 ms instead of 157 ms (in passes of 4,096 tokens). Other C
    libraries, and tensors above `LARGEST_KEPT` bytes, stay as they are.
    """
    libc = c_library()
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)
        libc.mallopt(M_TRIM_THRESHOLD, MOST_KEPT)


def touch_memory() -> None:
    """Have the system map pages before a first prefill asks for them, where freed memory is kept.

    For `tiny` and 4,149 tokens the first TTFT of a program is 83 to 92 ms with it and 95 to 132 ms without (nine programs
    each, in turns), for up to 0.1 s of start-up.
    """
    libc = c_library()
    if not hasattr(libc, "mallopt"):
        return
    import ctypes

    libc.malloc.argtypes, libc.malloc.restype = (ctypes.c_size_t,), ctypes.c_void_p
    libc.free.argtypes = (ctypes.c_void_p,)
    # Not tensors: what else torch allocates for them would lie between the blocks, and keep them from becoming one again,
    # so that a tensor a little larger than one of them would find no room.
    blocks = [block for block in (libc.malloc(TOUCHED_BLOCK) for _ in range(TOUCHED_BLOCKS)) if block is not None]
    for block in blocks:
        ctypes.memset(block, 0, TOUCHED_BLOCK)
    for block in blocks:
        libc.free(block)


def return_freed_memory() -> None:
    """Give back what `keep_freed_memory` kept, so that it does not stand in the next measurement's floor."""
    libc = c_library()
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def c_library():
    """The C library of this process on Linux, else None."""
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    return ctypes.CDLL(None)


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

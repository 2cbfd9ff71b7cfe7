"""Peak memory of a part of a run, and the memory before it."""

import re
from contextlib import suppress
from pathlib import Path

import torch

from specprefill_cli.models.machine.process import KIBIBYTE


class PeakMemory:
    """Peak memory since it was created, or None where the system does not report it.

    before: bytes in use at its creation (program, libraries, models)
    """

    def __init__(self) -> None:
        self.on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
        if self.on_gpu:
            for device in range(torch.cuda.device_count()):
                torch.cuda.reset_peak_memory_stats(device)
        self.is_known = self.on_gpu
        # Linux's resident high-water mark can be set to the present size, where that is allowed.
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
            self.is_known = True
        self.before = self.bytes()

    def bytes(self) -> int | None:
        """The peak in bytes."""
        if self.on_gpu:
            return sum(torch.cuda.max_memory_allocated(device) for device in range(torch.cuda.device_count()))
        if not self.is_known:
            return None
        peak = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
        return int(peak[1]) * KIBIBYTE if peak else None

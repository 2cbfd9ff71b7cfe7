"""Ranks 1, 2, ... as child processes of rank 0, supervised by torch's elastic launcher."""

from __future__ import annotations

import logging
import shutil
import signal
import sys
import tempfile
from pathlib import Path

# Seconds until processes that do not end are killed, and lines of a failed one's log that are shown.
CLOSING, SHOWN_LINES = 3, 5


class WorkerProcesses:
    """One process a rank, which joins the run as if torchrun had started it; its output goes to a log file.

    They run in sessions of their own, out of Ctrl-C's reach. When one fails, the launcher ends the others.
    """

    def __init__(self, size: int, environment: dict[str, str]) -> None:
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std, start_processes

        # The heartbeat reports a dead rank in one line; the launcher would log its own banner as well.
        logger = logging.getLogger("torch.distributed.elastic")
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
        self.logs = Path(tempfile.mkdtemp(prefix="specprefill-ranks-"))
        ranks = {local: str(local + 1) for local in range(size - 1)}
        handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
        self.context = start_processes(
            name="specprefill",
            entrypoint=sys.executable,
            args=dict.fromkeys(ranks, ("-m", "specprefill_cli")),
            envs={local: {**environment, "RANK": rank, "LOCAL_RANK": rank} for local, rank in ranks.items()},
            logs_specs=DefaultLogsSpecs(log_dir=str(self.logs), redirects=Std.ALL),
        )
        # The launcher takes over the signals that end a process, which are rank 0's here.
        for number, handler in handlers.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)

    def failure(self) -> str | None:
        """Return the last lines of the log of a rank whose process has ended, and which it was; None while all run."""
        result = self.context.wait(0)
        if result is None:
            return None
        if not result.failures:
            return "the processes of the other ranks have ended"
        # Those that the launcher then ended follow.
        first = next(iter(result.failures.values()))
        code = f"signal {-first.exitcode}" if first.exitcode < 0 else f"exit code {first.exitcode}"
        rank, log = first.local_rank + 1, Path(result.stderrs[first.local_rank])
        lines = [f"rank {rank} | {line}" for line in log.read_text(errors="replace").splitlines()[-SHOWN_LINES:]]
        return "\n".join([*lines, f"rank {rank} stopped answering: its process ended with {code}"])

    def close(self, keep_logs: bool = True) -> None:
        """End all processes."""
        self.context.close(timeout=CLOSING)
        if not keep_logs:
            shutil.rmtree(self.logs, ignore_errors=True)

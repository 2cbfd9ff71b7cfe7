"""Heartbeats: every rank increments a counter in the run's store, and rank 0 ends the run when one stops doing so.

Collectives cannot have a time limit instead: rank 0 may wait for its user, and the others for rank 0's draft model.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from torch.distributed import Store

    from specprefill_cli.distributed.launch import WorkerProcesses

# Seconds between two heartbeats, without one until a rank counts as lost, and until its first one: it imports torch.
BEAT, SILENCE, STARTING = 0.25, 20.0, 300.0
# Store key that ends the run. Its value says why a rank cannot go on.
END = "end"


class Heartbeat(threading.Thread):
    """A thread, because a collective whose peer is lost may never return (NCCL).

    store: a connection of its own, because collectives wait for each other on theirs
    workers: the processes of ranks 1, 2, ... where rank 0 started them
    """

    def __init__(self, rank: int, size: int, store: Store, workers: WorkerProcesses | None = None) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self.rank, self.store, self.workers = rank, store, workers
        self.stopped = threading.Event()
        self.ending = threading.Lock()
        self.last_beats = {peer: (0, time.monotonic()) for peer in range(1, size)}

    def run(self) -> None:
        while not self.stopped.wait(BEAT):
            try:
                self.store.add(beat_key(self.rank), 1)
                reason = self.reason_to_end()
            except RuntimeError:
                reason = "the process that holds the run's store is gone"
            if reason is not None and not self.stopped.is_set():
                self.end_process(reason)

    def reason_to_end(self) -> str | None:
        """Return why this process must end; None while the run goes on."""
        if self.store.check([END]):
            return self.store.get(END).decode()
        if self.rank == 0:
            return (self.workers and self.workers.failure()) or self.silent_rank()
        return None

    def silent_rank(self) -> str | None:
        """Return which rank has sent no heartbeat for too long."""
        now = time.monotonic()
        for peer, (last_beat, since) in self.last_beats.items():
            beat = int(self.store.get(beat_key(peer))) if self.store.check([beat_key(peer)]) else 0
            if beat != last_beat:
                self.last_beats[peer] = beat, now
            elif now - since > (SILENCE if beat else STARTING):
                return f"rank {peer} stopped answering: no heartbeat for {now - since:.0f} s"
        return None

    def end_by_signal(self, *_: object) -> None:
        """Handle SIGTERM, unless it comes while the run ends already."""
        if not self.ending.locked():
            self.end_process(self.reason_to_end() or "another rank stopped answering, or SIGTERM ended the run")

    def end_process(self, reason: str) -> NoReturn:
        """End this process at once, from any thread; on rank 0, with the reason as the last line on standard error."""
        # Never released: a second thread that calls this waits for the end.
        self.ending.acquire()
        if self.rank == 0:
            logs = f" (logs: {self.workers.logs})" if self.workers else ""
            text = f"{reason}{logs}; the run has ended, start it again"
            # It may quote a log: no control character may reach the terminal.
            lines = ["".join(c if c.isprintable() else " " for c in line) for line in text.splitlines()]
            print(*lines[:-1], f"specprefill: {lines[-1]}", sep="\n", file=sys.stderr, flush=True)
            if self.workers:
                self.workers.close()
        # An ended worker is no failure of its own: rank 0's exit code is the run's.
        os._exit(1 if self.rank == 0 else 0)


def beat_key(rank: int) -> str:
    """Return the store's key for a rank's heartbeats."""
    return f"beat/{rank}"

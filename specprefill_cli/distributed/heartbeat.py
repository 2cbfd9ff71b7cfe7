"""Whether all ranks of a run are alive: each says so in a store that all can read, and rank 0 ends the run when one stops.

A collective whose peer is gone may wait for ever (NCCL), so a thread watches beside it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, NoReturn

from specprefill_cli.errors import first_line

if TYPE_CHECKING:
    from torch.distributed import Store

# Seconds between two signs of life, and without one until a rank counts as lost.
BEAT, SILENCE = 0.5, 20.0
# Rank 0 may be about to fail at the same order for the same reason, and say so itself.
GRACE = 3.0


@dataclass(frozen=True)
class Sign:
    """What a rank says of itself: a number that grows, the order at hand, and why it could not follow it."""

    beat: int = 0
    order: int = 0
    failure: str = ""


class Watch:
    """Signs of life given and read.

    sent: orders so far; order: number of the one at hand, where rank 0 has 0 between two; failure: why this rank could
        not follow it
    store: a connection of its own, because others block for as long as they wait
    workers: the processes of ranks 1, 2, ... where this one started them
    """

    def __init__(
        self, store: Store, rank: int, size: int, workers: Sequence[subprocess.Popen] = (), silence: float = SILENCE
    ) -> None:
        self.store, self.rank, self.size, self.workers, self.silence = store, rank, size, workers, silence
        self.sent = 0
        self.order = 0
        self.failure = ""
        self.ended = threading.Event()
        self.telling = threading.Lock()
        self.told = False
        self.thread = threading.Thread(target=self.run, name="liveness", daemon=True)

    def run(self) -> None:
        """Give and read signs until the run ends; a rank that is lost ends it."""
        beat = 0
        watched = range(1, self.size) if self.rank == 0 else (0,)
        seen = {other: (Sign(), time.monotonic()) for other in watched}
        failing: dict[tuple[int, int], float] = {}
        while not self.ended.wait(BEAT):
            beat += 1
            reason = self.dead_worker()
            try:
                self.store.set(key(self.rank), json.dumps(asdict(Sign(beat, self.order, self.failure))))
                signs = {other: read_sign(self.store, other) for other in watched}
            except RuntimeError:
                # torch's errors of a lost connection are its own kinds of it: who holds the store was the first to go.
                reason, signs = reason or "the process that started this run is gone", {}
            for other, sign in signs.items():
                now = time.monotonic()
                if sign != seen[other][0]:
                    seen[other] = (sign, now)
                if now - seen[other][1] > self.silence:
                    reason = reason or f"rank {other} stopped answering {self.silence:.0f} s ago"
                at_hand = sign.failure and sign.order == self.order
                if at_hand and now - failing.setdefault((other, sign.order), now) > GRACE:
                    reason = reason or f"rank {other} failed: {sign.failure}"
            if reason and not self.ended.is_set():
                self.leave(reason)

    def dead_worker(self) -> str:
        """What became of a process that this one started; empty while all run."""
        for rank, worker in enumerate(self.workers, 1):
            if worker.poll() is not None:
                return f"rank {rank} stopped answering: its process ended with {ending(worker.returncode)}"
        return ""

    def explain(self, error: Exception, within: float) -> str:
        """Why a collective failed on this rank, in words; other ranks are given so many seconds to be missed."""
        until = time.monotonic() + within
        while time.monotonic() < until:
            reason = self.dead_worker()
            if reason:
                return reason
            time.sleep(BEAT / 5)
        who = "rank 1" if self.size == 2 else "a rank"
        # gloo begins with a line of its source, and ends with advice for programmers.
        what = re.sub(r"^\[[^]]*] ", "", first_line(error)).split(". ")[0]
        return f"{who} stopped answering: {what}"

    def tell(self, reason: str) -> None:
        """Say on rank 0, once, why the run ends."""
        with self.telling:
            if self.rank == 0 and not self.told:
                sys.stdout.flush()
                print(f"specprefill: {ended_line(reason)}", file=sys.stderr, flush=True)
            self.told = True

    def leave(self, reason: str) -> NoReturn:
        """End this process from beside its main thread, which may wait for a rank that will never answer."""
        self.tell(reason)
        for worker in self.workers:
            worker.kill()
        os._exit(1)


def key(rank: int) -> str:
    return f"sign/{rank}"


def read_sign(store: Store, rank: int) -> Sign:
    return Sign(**json.loads(store.get(key(rank))))


def await_all(store: Store, rank: int, size: int, dead: Callable[[], str], within: float) -> str:
    """Wait until every rank has given a sign; why that will not happen, or nothing when it has."""
    store.set(key(rank), json.dumps(asdict(Sign())))
    until = time.monotonic() + within
    while not store.check([key(other) for other in range(size)]):
        reason = dead()
        if reason:
            return reason
        if time.monotonic() > until:
            missing = [other for other in range(size) if not store.check([key(other)])]
            return f"rank {', '.join(map(str, missing))} did not join within {within:.0f} s"
        time.sleep(BEAT / 5)
    return ""


def ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def ended_line(reason: str) -> str:
    """The line that a run ends with when a rank is lost."""
    from specprefill_cli.reporting.safe import printable

    return f"{' '.join(printable(reason).split())}; the run has ended, start it again"

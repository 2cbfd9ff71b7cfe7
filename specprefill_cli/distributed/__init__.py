"""Ranks: the processes that share a target by tensor parallelism.

Rank 0 alone reads, runs the draft, decides, decodes and prints. What the target must do is a command, broadcast
before rank 0 does it too: no rank can branch differently, and Ctrl-C or a closed pipe between two commands does no
harm. Commands go through main memory: a rank that waits for the next question must not keep its GPU busy.
"""

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from specprefill_cli.errors import SpecprefillError, first_line
from specprefill_cli.signals import deferred_signals

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Store

# Seconds for rank 0 to raise the error that this rank has raised, or for the launcher to find the process that has ended.
GRACE = 3.0
# The store's keys: why a rank has failed, and where rank 0 raised a SpecprefillError at a command.
FAILURE, REFUSAL = "failure", "refusal/{}"
Value = TypeVar("Value")


@dataclass
class Shard:
    """The state of a rank other than 0 between two commands.

    session: with its part of the target; runner: reads the answer after the prompt
    prefix_caches: its parts of prefix caches, by the names that rank 0 gave them
    """

    ranks: "Ranks"
    session: Any = None
    runner: Any = None
    prefix_caches: dict[str, Any] = field(default_factory=dict)

    def close(self) -> None:
        """Release everything: an old pair must not stay in memory beside its successor."""
        self.session = self.runner = None
        self.prefix_caches.clear()


# A command to another rank, work on its shard: a function that all ranks can import, with its arguments (`functools.partial`).
Work = Callable[[Shard], object]


@dataclass(eq=False)
class Ranks:
    """This process among those that share the models; without the others, it is rank 0 of 1 and sends nothing.

    local: number of this process on its machine, and of its GPU; store: of a run of several processes
    group: gloo connections for what rank 0 sends, apart from collectives that other ranks may still be in
    processes: those of ranks 1, 2, ... where rank 0 started them; commands: how many have been sent or received
    """

    rank: int = 0
    size: int = 1
    local: int = 0
    store: "Store | None" = None
    group: "ProcessGroup | None" = None
    processes: Any = None
    commands: int = 0

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def broadcast(self, value: Value) -> Value:
        """Return rank 0's value on every rank; the arguments of the other ranks are ignored."""
        if self.group is None:
            return value
        import torch.distributed as dist

        values = [value if self.leads else None]
        dist.broadcast_object_list(values, src=0, group=self.group)
        return cast("Value", values[0])

    def compute_on_rank_0(self, compute: Callable[[], Value]) -> Value:
        """Call `compute` on rank 0 alone; return its value, or raise its SpecprefillError, on every rank."""
        try:
            outcome: Any = compute() if self.leads else None
        except SpecprefillError as error:
            outcome = error
        outcome = self.broadcast(outcome)
        if isinstance(outcome, SpecprefillError):
            raise outcome
        return outcome

    @contextmanager
    def run_on_all_ranks(self, work: Work) -> Iterator[None]:
        """On rank 0, send the others their work and do the same in the block. No signal interrupts it.

        A SpecprefillError passes through, because all ranks raise it alike. After any other error the ranks would wait for each
        other, so it ends the run with a line on standard error and exit code 1.
        """
        if self.store is None or not self.leads:
            yield
            return
        # Half a command would leave the other ranks waiting.
        with deferred_signals():
            try:
                self.commands += 1
                self.broadcast(work)
                yield
            except SpecprefillError:
                self.store.set(REFUSAL.format(self.commands), "")
                raise
            except Exception as error:
                self.end_run(error)

    def receive(self) -> Work:
        """Wait without limit for the next work that rank 0 sends, and return it; called on the other ranks."""
        command: object = None
        while not callable(command):
            # A value from a command that this rank has refused may come first.
            command = self.broadcast(None)
        self.commands += 1
        return command

    def end_run(self, error: Exception) -> NoReturn:
        """End the run from rank 0, after an error that the other ranks may not have."""
        is_lost = is_connection_error(error)
        if self.processes:
            # The watcher ends the run as soon as it knows which process has ended.
            self.processes.watcher.join(GRACE if is_lost else 0)
            self.processes.close()
        alone = f"rank 0 failed: {first_line(error)}, and the others cannot go on without it"
        end_process(self.failure_of_others() if is_lost else alone)

    def failure_of_others(self) -> str:
        """Return why another rank cannot go on, as far as that is known on rank 0."""
        if self.store is not None and self.store.check([FAILURE]):
            return self.store.get(FAILURE).decode()
        return "another rank stopped answering, or SIGTERM ended the run"

    def fail(self, error: Exception) -> None:
        """End this rank, not rank 0, unless rank 0 raises a SpecprefillError at the same command too."""
        if is_connection_error(error):
            # Rank 0 has ended, or reports the rank that was lost: its exit code is the run's.
            os._exit(0)
        assert self.store is not None, "a rank of several has a store"
        if isinstance(error, SpecprefillError):
            # A RuntimeError: rank 0 has no such error.
            with suppress(RuntimeError):
                return self.store.wait([REFUSAL.format(self.commands)], timedelta(seconds=GRACE))
        traceback.print_exception(error)
        self.store.set(FAILURE, f"rank {self.rank} failed: {first_line(error)}")
        os._exit(1)


ALONE = Ranks()


def is_connection_error(error: Exception) -> bool:
    """Return whether a collective failed because a peer is gone."""
    import torch.distributed as dist

    return isinstance(error, dist.DistError) or any(name in str(error).lower() for name in ("gloo", "nccl"))


def end_process(reason: str) -> NoReturn:
    """End this process at once, from any thread, with the reason as the last line on standard error."""
    # The reason may quote a log: no control character may reach the terminal.
    *log, last = ["".join(c if c.isprintable() else " " for c in line) for line in reason.splitlines()]
    print(*log, f"specprefill: {last}; the run has ended, start it again", sep="\n", file=sys.stderr, flush=True)
    os._exit(1)

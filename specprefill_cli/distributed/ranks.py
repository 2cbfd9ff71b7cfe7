"""Ranks: the processes that share a pair of models by tensor parallelism.

Rank 0 alone reads, decides, decodes and prints. What the models must do is a command, broadcast before rank 0 executes it
too: no rank can branch differently, and Ctrl-C or a closed pipe between two commands does no harm.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from specprefill_cli.distributed.commands import Command, decode, encode, header
from specprefill_cli.distributed.heartbeat import BEAT, END, Heartbeat
from specprefill_cli.errors import SpecprefillError, first_line
from specprefill_cli.signals import deferred_signals

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

# Seconds for another rank to fail like this one, or for the heartbeat to find out why a connection was lost.
GRACE = 3.0
Value = TypeVar("Value")


@dataclass(eq=False)
class Ranks:
    """This process among those that share the models; without the others, it is rank 0 of 1 and sends nothing.

    local: number of this process on its machine, and of its GPU
    """

    rank: int = 0
    size: int = 1
    local: int = 0

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def agree(self, value: Value) -> Value:
        """Return rank 0's value on every rank; the argument of the others is ignored."""
        return value

    def from_leader(self, compute: Callable[[], Value]) -> Value:
        """Return what `compute` returns on rank 0, the only one to call it; its SpecprefillError is raised on all."""
        outcome: Any = None
        if self.leads:
            try:
                outcome = compute()
            except SpecprefillError as error:
                outcome = error
        outcome = self.agree(outcome)
        if isinstance(outcome, SpecprefillError):
            raise outcome
        return outcome

    def summed(self, values: Tensor) -> Tensor:
        """Return the sum of all ranks' values, of the same shape and on the same device; bit for bit equal on all ranks."""
        return values

    def maximum(self, values: Tensor) -> Tensor:
        """Return the largest of all ranks' values, like `summed`. Where one is NaN the result is infinite."""
        return values

    @contextmanager
    def together(self, command: Command) -> Iterator[None]:
        """On rank 0, send a command and execute it in the block, which no signal interrupts; elsewhere just execute it.

        A SpecprefillError, which all ranks raise alike, passes. After any other error the ranks would wait for each
        other, so it ends the run with one line on standard error and exit code 1.
        """
        yield

    def finish(self) -> None:
        """At the end of rank 0: end the others."""


ALONE = Ranks()


@dataclass(eq=False, kw_only=True)
class ConnectedRanks(Ranks):
    """Ranks of a run of several processes.

    group: gloo connections for what rank 0 sends: a rank that has failed at a command waits there for the next one,
        without disturbing a collective that other ranks are still in
    commands: how many have been sent or received
    """

    heartbeat: Heartbeat
    group: ProcessGroup | None = None
    commands: int = 0

    @property
    def refused(self) -> str:
        """The store's key for: rank 0 raised a SpecprefillError at the latest command."""
        return f"refused/{self.commands}"

    def agree(self, value: Value) -> Value:
        if not self.leads:
            return self.received()
        for tensor in encode(value):
            if tensor is not None:
                self.broadcast(tensor)
        return value

    def received(self) -> Any:
        """Return what rank 0 sends next; called on the other ranks."""
        numbers = header()
        self.broadcast(numbers)
        return decode(numbers, self.broadcast)

    def broadcast(self, tensor: Tensor) -> None:
        """Send a tensor on the CPU from rank 0, or receive it elsewhere."""
        import torch.distributed as dist

        dist.broadcast(tensor, src=0, group=self.group)

    def summed(self, values: Tensor) -> Tensor:
        import torch.distributed as dist

        total = values.detach().clone()
        dist.all_reduce(total)
        return total

    def maximum(self, values: Tensor) -> Tensor:
        import torch
        import torch.distributed as dist

        # What a maximum makes of NaN depends on the order of its operands.
        highest = values.detach().nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
        dist.all_reduce(highest, dist.ReduceOp.MAX)
        return highest

    @contextmanager
    def together(self, command: Command) -> Iterator[None]:
        if not self.leads:
            yield
            return
        # Half a command would leave the other ranks waiting.
        with deferred_signals():
            try:
                self.commands += 1
                self.agree(command)
                yield
            except SpecprefillError:
                self.heartbeat.store.set(self.refused, "")
                raise
            except Exception as error:
                self.end_run(error)

    def receive(self) -> Command:
        """Return rank 0's next command, however long it takes; called on the other ranks."""
        command = None
        while not isinstance(command, Command):
            # A value from a command that this rank has refused may come first.
            command = self.received()
        self.commands += 1
        return command

    def end_run(self, error: Exception) -> NoReturn:
        """End the run from rank 0, after an error that the other ranks may not have."""
        if is_connection_error(error):
            # The heartbeat soon knows who was lost, and why.
            time.sleep(GRACE)
            self.heartbeat.end_process(f"another rank stopped answering: {first_line(error)}")
        self.heartbeat.end_process(f"rank 0 failed: {first_line(error)}, and the others cannot go on without it")

    def fail(self, error: Exception) -> None:
        """End the run from another rank, unless rank 0 raises a SpecprefillError at the same command too."""
        deadline = time.monotonic() + GRACE
        while isinstance(error, SpecprefillError) and time.monotonic() < deadline:
            if self.heartbeat.store.check([self.refused]):
                return
            time.sleep(BEAT)
        if not is_connection_error(error):
            traceback.print_exception(error)
            self.heartbeat.store.set(END, f"rank {self.rank} failed: {first_line(error)}")
        self.heartbeat.join()

    def finish(self) -> None:
        """At the end of rank 0: end the others, whatever they are doing."""
        self.heartbeat.stopped.set()
        self.heartbeat.join()
        self.heartbeat.store.set(END, "")
        if self.heartbeat.workers:
            self.heartbeat.workers.close(keep_logs=False)


def is_connection_error(error: Exception) -> bool:
    """Return whether a collective failed because a peer is gone."""
    import torch.distributed as dist

    return isinstance(error, dist.DistError) or any(name in str(error).lower() for name in ("gloo", "nccl"))

"""Ranks: processes that share one target model (tensor parallel). Rank 0 leads, the others follow its orders.

Rank 0 alone reads, decides, decodes and prints. What the target must do is an order, sent to all ranks before rank 0 does
the same (`following.py`): so no rank can take another way, and Ctrl-C or a closed pipe between two orders hurts nothing.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn, TypeVar

from specprefill_cli.distributed.heartbeat import Watch
from specprefill_cli.errors import SpecprefillError, first_line

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

# Seconds in which a lost rank is named after a collective failed.
NAMING = 3.0
Value = TypeVar("Value")


@dataclass(frozen=True)
class Numbered:
    """An order on its way: what else rank 0 sends can be told from it."""

    number: int
    order: object


class End:
    """The order that ends a follower."""


@dataclass(frozen=True)
class Ranks:
    """This process among those that share the target; a process alone is rank 0 of 1, for which nothing is sent.

    local: number of this process on its machine, which is that of its GPU
    orders: connections of their own for what rank 0 sends: who failed in the middle of an order can wait there for the
        next one, and is not taken to answer the collective that others are still in
    """

    rank: int = 0
    size: int = 1
    local: int = 0
    watch: Watch | None = field(default=None, compare=False)
    orders: ProcessGroup | None = field(default=None, compare=False)

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def agree(self, value: Value) -> Value:
        """Rank 0's value, on every rank; the others' own is not looked at."""
        if self.size == 1:
            return value
        import torch
        import torch.distributed as dist

        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.orders, device=torch.device("cpu"))
        return box[0]

    def from_leader(self, compute: Callable[[], Value]) -> Value:
        """What `compute` gives on rank 0, where alone it is called; its SpecprefillError is raised on every rank."""
        if not self.leads:
            found = self.agree(None)
            if isinstance(found, SpecprefillError):
                raise found
            return found
        try:
            found = compute()
        except SpecprefillError as error:
            self.agree(error)
            raise
        return self.agree(found)

    def summed(self, values: Tensor) -> Tensor:
        """The sum of all ranks' values, in a tensor of the same shape on the CPU; bit for bit the same on every rank."""
        if self.size == 1:
            return values
        import torch.distributed as dist

        total = values.detach().cpu().clone()
        dist.all_reduce(total)
        return total

    @contextmanager
    def together(self, order: object) -> Iterator[None]:
        """On rank 0: send an order, and do its own part of it in the block, which no signal interrupts. Elsewhere: do it.

        A SpecprefillError is raised on every rank alike and passes; after any other error ranks would wait for each
        other, so it ends the program, with one line on standard error and exit code 1.
        """
        if self.size == 1 or not self.leads:
            yield
            return
        with undisturbed():
            try:
                self.send(order)
                yield
            except SpecprefillError:
                raise
            except Exception as error:
                self.end_run(error)
            finally:
                self.watch.order = 0

    def send(self, order: object) -> None:
        """Rank 0: tell the others what to do next; nothing where there are none."""
        if self.size > 1:
            if self.watch.told:
                # The run has ended: the others may be in the order that failed here, and would not take another one.
                raise SystemExit(1)
            self.watch.sent += 1
            self.watch.order = self.watch.sent
            self.agree(Numbered(self.watch.sent, order))

    def receive(self) -> Numbered:
        """Elsewhere than on rank 0: the next order, however long it takes."""
        while not isinstance(found := self.agree(None), Numbered):
            """It belongs to an order that this rank could not follow to its end."""
        return found

    def end_run(self, error: Exception) -> NoReturn:
        import torch.distributed as dist

        lost = isinstance(error, dist.DistError) or any(word in str(error).lower() for word in ("gloo", "nccl"))
        failed = f"rank 0 failed: {first_line(error)}, and the others cannot go on without it"
        self.watch.tell(self.watch.explain(error, NAMING) if lost else failed)
        raise SystemExit(1) from error


ALONE = Ranks()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold back SIGINT and SIGTERM until the block ends: half an order would leave the other ranks waiting."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = {kind: signal.signal(kind, lambda number, _frame: pending.append(number)) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
        for number in pending[:1]:
            signal.raise_signal(number)

"""Ranks: processes that share one target model (tensor parallel). Rank 0 leads, the others follow its orders.

Rank 0 alone reads, decides, decodes and prints. What the target must do is an order, sent to all ranks before rank 0 does
the same (`following.py`): so no rank can take another way, and Ctrl-C or a closed pipe between two orders hurts nothing.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, NoReturn, TypeVar

from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.models.liveness import Watch, await_all, first_line

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup, Store

# Seconds that ranks may need until all are there: they import torch first, on cold disks.
JOINING = 300.0
# Collectives have no time limit of their own, since rank 0 may wait for its user; `Watch` finds who is lost.
NO_LIMIT = timedelta(days=30)
# Seconds in which a lost rank is named after a collective failed.
NAMING = 3.0
LOOPBACK = {"linux": "lo", "darwin": "lo0"}
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


def in_run(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether torchrun, or a rank 0, started this process as one of several."""
    return "RANK" in environment and "MASTER_PORT" in environment and int(environment.get("WORLD_SIZE", 1)) > 1


def ranks_for(tensor_parallel: int) -> Ranks:
    """The ranks that share the target: those that torchrun started, or as many as wanted, started here.

    Raises UsageError where both are there and differ, SpecprefillError where a rank does not come up.
    """
    if in_run():
        ranks = join_run()
        if tensor_parallel not in (1, ranks.size):
            raise UsageError(
                f"--tensor-parallel {tensor_parallel}: torchrun started {ranks.size} processes; leave the option out"
            )
        return ranks
    return start_run(tensor_parallel) if tensor_parallel > 1 else ALONE


def refuse_ranks(tensor_parallel: int, what: str) -> None:
    """Raises UsageError for work that is done in one process only."""
    if in_run() or tensor_parallel > 1:
        raise UsageError(f"{what} runs in one process; call it without torchrun and with --tensor-parallel 1")


@cache
def join_run() -> Ranks:
    """The ranks of the run that the environment names. Cached: a process can be in one run only."""
    import torch.distributed as dist

    try:
        store = next(iter(dist.rendezvous("env://", timeout=timedelta(seconds=JOINING))))[0]
    except (RuntimeError, ValueError) as error:
        raise SpecprefillError(f"the ranks cannot meet ({first_line(error)}); start torchrun again") from error
    ranks = meet(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), store)
    if ranks.leads:
        # torchrun sends it to the ranks that are left when one has died.
        signal.signal(signal.SIGTERM, lambda *_: told_to_end(ranks.watch))
    return ranks


def told_to_end(watch: Watch) -> NoReturn:
    watch.tell("another rank stopped answering, or the run was told to end (SIGTERM)")
    raise SystemExit(1)


@cache
def start_run(size: int) -> Ranks:
    """Start ranks 1, 2, ... on this machine and meet them as rank 0.

    Not through torchrun: rank 0 keeps its standard input and output, its exit code and Ctrl-C, and a rank that dies is
    told in our own line alone.
    """
    import torch
    import torch.distributed as dist

    if torch.cuda.is_available() and size > torch.cuda.device_count():
        raise UsageError(f"--tensor-parallel {size}: only {torch.cuda.device_count()} GPU(s) are visible")
    # Both the store and gloo would otherwise listen to the network.
    if sys.platform in LOOPBACK:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK[sys.platform])
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    store = dist.TCPStore(
        "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
    )
    place = {
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "specprefill_cli"],
            env={**os.environ, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Ctrl-C is for rank 0, which then tells them.
            start_new_session=True,
        )
        for rank in range(1, size)
    ]
    return meet(0, size, store, workers)


def meet(rank: int, size: int, store: Store, workers: Sequence[subprocess.Popen] = ()) -> Ranks:
    """Wait for all ranks and connect them: gloo for what is on the CPU, NCCL between GPUs.

    Raises SpecprefillError where one does not come.
    """
    import torch
    import torch.distributed as dist

    watch = Watch(store.clone(), rank, size, workers)
    missing = await_all(store, rank, size, watch.dead_worker, JOINING)
    if missing:
        for worker in workers:
            worker.kill()
        raise SpecprefillError(f"{missing}; start the run again")
    local = int(os.environ.get("LOCAL_RANK", rank))
    on_gpus = torch.cuda.is_available()
    if on_gpus:
        torch.cuda.set_device(local)
    elif "OMP_NUM_THREADS" not in os.environ:
        neighbours = int(os.environ.get("LOCAL_WORLD_SIZE", size))
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // neighbours))
    watch.thread.start()
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpus else "gloo",
        store=dist.PrefixStore("group", store),
        rank=rank,
        world_size=size,
        timeout=NO_LIMIT,
    )
    ranks = Ranks(rank, size, local, watch, dist.new_group(backend="gloo", timeout=NO_LIMIT))
    if ranks.leads:
        atexit.register(release, ranks)
    return ranks


def release(ranks: Ranks) -> None:
    """At the end of rank 0: let the others end too."""
    watch = ranks.watch
    # From here on a rank that is gone is no loss.
    watch.ended.set()
    if not watch.told:
        try:
            ranks.send(End())
            for worker in watch.workers:
                worker.wait(NAMING)
        except RuntimeError as error:
            watch.tell(watch.explain(error, NAMING))
        except subprocess.TimeoutExpired:
            """It is ended below."""
    for worker in watch.workers:
        worker.kill()
    if watch.told:
        # Taking down connections to ranks that are gone may wait for ever.
        sys.stdout.flush()
        os._exit(1)


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

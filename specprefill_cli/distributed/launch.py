"""How the ranks of a run come together and part: started by torchrun, on one machine or several, or by rank 0."""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, NoReturn

from packaging.version import Version

from specprefill_cli.distributed.heartbeat import Watch, await_all
from specprefill_cli.distributed.ranks import ALONE, NAMING, End, Ranks
from specprefill_cli.errors import SpecprefillError, UsageError, first_line

if TYPE_CHECKING:
    from torch.distributed import Store

OLDEST_TORCH = Version("2.7")
# Seconds that ranks may need until all are there: they import torch first, on cold disks.
JOINING = 300.0
# Collectives have no time limit of their own, since rank 0 may wait for its user; `Watch` finds who is lost.
NO_LIMIT = timedelta(days=30)
# Seconds that rank 0, at its own end, waits for others to take the order to end too.
FAREWELL = 20.0
LOOPBACK = {"linux": "lo", "darwin": "lo0"}


def in_run(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether torchrun, or a rank 0, started this process as one of several."""
    return "RANK" in environment and "MASTER_PORT" in environment and int(environment.get("WORLD_SIZE", 1)) > 1


def ranks_for(tensor_parallel: int) -> Ranks:
    """The ranks that share the target: those that torchrun started, or as many as wanted, started here.

    Raises UsageError where both are there and differ, SpecprefillError where a rank does not come up, or for a torch that
    is too old.
    """
    if in_run() or tensor_parallel > 1:
        check_torch()
    if in_run():
        ranks = join_run()
        if tensor_parallel not in (1, ranks.size):
            raise UsageError(
                f"--tensor-parallel {tensor_parallel}: torchrun started {ranks.size} processes; leave the option out"
            )
        return ranks
    return start_run(tensor_parallel) if tensor_parallel > 1 else ALONE


def check_torch() -> None:
    """Raises SpecprefillError for a torch with which transformers cannot divide a model's layers."""
    import torch

    if Version(torch.__version__) < OLDEST_TORCH:
        raise SpecprefillError(
            f"tensor parallelism needs torch {OLDEST_TORCH} or newer, this is {torch.__version__}; upgrade torch, or leave "
            "out --tensor-parallel and torchrun"
        )


def refuse_ranks(tensor_parallel: int, what: str) -> None:
    """Raises UsageError for work that is done in one process only."""
    if in_run() or tensor_parallel > 1:
        raise UsageError(
            f"{what} runs in one process; call it without torchrun, and with SPECPREFILL_TENSOR_PARALLEL=1"
        )


@cache
def join_run() -> Ranks:
    """The ranks of the run that the environment names. Cached: a process can be in one run only."""
    import torch.distributed as dist

    def connect() -> Store:
        return next(iter(dist.rendezvous("env://", timeout=timedelta(seconds=JOINING))))[0]

    try:
        stores = connect(), connect()
    except (RuntimeError, ValueError) as error:
        raise SpecprefillError(f"the ranks cannot meet ({first_line(error)}); start torchrun again") from error
    ranks = meet(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), stores)
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
    # The other kind of store takes no socket of ours before some later torch; this one suffices for a handful of ranks.
    store = dist.TCPStore(
        "127.0.0.1",
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
        use_libuv=False,
    )
    stores = store, dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
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
    return meet(0, size, stores, workers)


def meet(rank: int, size: int, stores: tuple[Store, Store], workers: Sequence[subprocess.Popen] = ()) -> Ranks:
    """Wait for all ranks and connect them: gloo for what is on the CPU, NCCL between GPUs.

    stores: two connections to the same store, the second for signs of life

    Raises SpecprefillError where one does not come.
    """
    import torch
    import torch.distributed as dist

    store, signs = stores
    watch = Watch(signs, rank, size, workers)
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
    # In torch's code when Python ends, it would be torn down there, and take the process with it.
    watch.thread.join(NAMING)
    if not watch.told:
        # One that never takes the order (it still loads what failed here, say) would be waited for without end, in code
        # that no signal reaches.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        faulthandler.dump_traceback_later(FAREWELL, exit=True, file=nowhere)
        try:
            ranks.send(End())
            for worker in watch.workers:
                worker.wait(NAMING)
        except RuntimeError as error:
            watch.tell(watch.explain(error, NAMING))
        except subprocess.TimeoutExpired:
            """It is ended below."""
        faulthandler.cancel_dump_traceback_later()
    for worker in watch.workers:
        worker.kill()
    if watch.told:
        # Taking down connections to ranks that are gone may wait for ever.
        sys.stdout.flush()
        os._exit(1)

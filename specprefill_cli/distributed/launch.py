"""How the ranks of a run come together: torchrun started them all, or rank 0 starts the others as its child processes."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from packaging.version import Version

from specprefill_cli.distributed.heartbeat import BEAT, Heartbeat, beat_key
from specprefill_cli.distributed.ranks import ALONE, Ranks, Shard
from specprefill_cli.errors import SpecprefillError, UsageError, first_line

if TYPE_CHECKING:
    from torch.distributed import Store

# Seconds until processes that do not end are killed, and lines of a failed one's log that are shown.
CLOSING, SHOWN_LINES = 3, 5
# The first with which transformers can divide a model's layers.
OLDEST_TORCH = Version("2.7")
# Collectives have no time limit: the heartbeat finds a lost rank.
NO_LIMIT = timedelta(days=30)
LOOPBACK = {"linux": "lo", "darwin": "lo0"}


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


def in_run(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether torchrun or a rank 0 started this process as one of several."""
    return "RANK" in environment and "MASTER_PORT" in environment and int(environment.get("WORLD_SIZE", 1)) > 1


def ranks_for(tensor_parallel: int) -> Ranks:
    """Return the ranks that share the target: torchrun's, or as many as the option says, started here.

    Raises UsageError where both are there and differ, SpecprefillError for a torch that is too old.
    """
    if not in_run() and tensor_parallel == 1:
        return ALONE
    import torch

    if Version(torch.__version__) < OLDEST_TORCH:
        raise SpecprefillError(
            f"tensor parallelism needs torch {OLDEST_TORCH} or newer, this is {torch.__version__}; upgrade torch, or leave "
            "out --tensor-parallel and torchrun"
        )
    if not in_run():
        return start_run(tensor_parallel)
    ranks = join_run()
    if tensor_parallel not in (1, ranks.size):
        raise UsageError(
            f"--tensor-parallel {tensor_parallel}: torchrun started {ranks.size} processes; leave the option out"
        )
    return ranks


@cache
def join_run() -> Ranks:
    """Join the run that the environment names. Cached: a process can be in one run only.

    Raises SpecprefillError where the ranks cannot meet.
    """
    import torch.distributed as dist

    try:
        stores = [next(iter(dist.rendezvous("env://")))[0] for _ in range(2)]
    except (RuntimeError, ValueError) as error:
        raise SpecprefillError(f"the ranks cannot meet ({first_line(error)}); start torchrun again") from error
    ranks = connect(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), *stores)
    if ranks.leads:
        # torchrun sends it to the ranks that are left when one has died.
        signal.signal(signal.SIGTERM, ranks.beating.end_by_signal)
    return ranks


@cache
def start_run(size: int) -> Ranks:
    """Start ranks 1, 2, ... on this machine and lead them.

    Rank 0 stays the process that the user called: it keeps its standard streams, terminal, exit code and Ctrl-C.

    Raises UsageError for more ranks than GPUs.
    """
    import torch
    import torch.distributed as dist

    if torch.cuda.is_available() and size > torch.cuda.device_count():
        raise UsageError(f"--tensor-parallel {size}: only {torch.cuda.device_count()} GPU(s) are visible")
    # Both the store and gloo would otherwise listen to the network.
    if sys.platform in LOOPBACK:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK[sys.platform])
    listening = socket.create_server(("127.0.0.1", 0))
    host, port = listening.getsockname()
    # The libuv store of torch 2.7 takes no socket of ours.
    server = dist.TCPStore(
        host, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach(), use_libuv=False
    )
    client = dist.TCPStore(host, port, is_master=False, wait_for_workers=False)
    place = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": host, "MASTER_PORT": str(port)}
    return connect(0, size, server, client, WorkerProcesses(size, place))


def follow_rank_0() -> NoReturn:
    """On ranks 1, 2, ...: do what rank 0 sends until it ends the run, or is lost."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Standard input and output belong to rank 0.
    devnull = os.open(os.devnull, os.O_RDWR)
    os.dup2(devnull, 0)
    os.dup2(devnull, 1)
    ranks = join_run()
    shard = Shard(ranks)
    while True:
        try:
            ranks.receive()(shard)
        except Exception as error:
            ranks.fail(error)


def connect(
    rank: int, size: int, store: Store, heartbeat_store: Store, workers: WorkerProcesses | None = None
) -> Ranks:
    """Wait for all ranks and connect them: gloo for tensors on the CPU, NCCL between GPUs."""
    import torch
    import torch.distributed as dist

    local = int(os.environ.get("LOCAL_RANK", rank))
    ranks = Ranks(rank, size, local, heartbeat=Heartbeat(rank, size, heartbeat_store, workers))
    ranks.beating.start()
    if ranks.leads:
        atexit.register(ranks.finish)
    while not store.check([beat_key(peer) for peer in range(size)]):
        time.sleep(BEAT)
    on_gpus = torch.cuda.is_available()
    if on_gpus:
        torch.cuda.set_device(local)
    elif "OMP_NUM_THREADS" not in os.environ:
        neighbours = int(os.environ.get("LOCAL_WORLD_SIZE", size))
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // neighbours))
    backend, group_store = "cpu:gloo,cuda:nccl" if on_gpus else "gloo", dist.PrefixStore("group", store)
    dist.init_process_group(backend, store=group_store, rank=rank, world_size=size, timeout=NO_LIMIT)
    ranks.group = dist.new_group(backend="gloo", timeout=NO_LIMIT)
    return ranks

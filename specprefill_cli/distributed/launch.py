"""How the ranks of a run come together: torchrun started them all, or rank 0 starts the others as its child processes."""

import atexit
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from specprefill_cli.distributed import ALONE, Ranks, Shard, end_process
from specprefill_cli.errors import SpecprefillError, UsageError, first_line

if TYPE_CHECKING:
    from torch.distributed import Store
    from torch.distributed.elastic.multiprocessing import RunProcsResult

# Seconds between two polls of the other processes, and until processes that do not end are killed.
POLLING, CLOSING = 0.25, 3
# Lines of a failed process's log that are shown.
SHOWN_LINES = 5
# Waiting for rank 0's next command has no time limit: rank 0 may wait for its user.
NO_LIMIT = timedelta(days=30)
LOOPBACK = {"linux": "lo", "darwin": "lo0"}


class RankProcesses:
    """The processes of the other ranks, out of Ctrl-C's reach: each joins the run as if torchrun had started it."""

    def __init__(self, size: int, environment: dict[str, str]) -> None:
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std, start_processes

        # The launcher would add a banner to our line about a dead rank.
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
        # The launcher takes over the signals that end a process; here they are rank 0's.
        for number, handler in handlers.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)
        # Held by the thread that ends the run, and never released.
        self.ending = threading.Lock()
        self.watcher = threading.Thread(target=self.watch, name="worker-processes", daemon=True)
        self.watcher.start()

    def watch(self) -> None:
        """End the run with a message when a process ends, even while rank 0 waits for a collective that never returns."""
        result = self.context.wait(period=POLLING)
        if result is not None and self.ending.acquire(blocking=False):
            end_process(f"{failure_of(result)} (logs: {self.logs})")

    def close(self, keep_logs: bool = True) -> None:
        if not self.ending.acquire(blocking=False):
            # The watcher ends this process.
            self.watcher.join()
        self.context.close(timeout=CLOSING)
        if not keep_logs:
            shutil.rmtree(self.logs, ignore_errors=True)


def failure_of(result: "RunProcsResult") -> str:
    """The number of the rank that failed first, below the last lines of its log."""
    # The ranks that the launcher then ended follow.
    first = next(iter(result.failures.values()), None)
    if first is None:
        return "the processes of the other ranks have ended"
    code = f"signal {-first.exitcode}" if first.exitcode < 0 else f"exit code {first.exitcode}"
    rank, log = first.local_rank + 1, Path(result.stderrs[first.local_rank])
    lines = [f"rank {rank} | {line}" for line in log.read_text(errors="replace").splitlines()[-SHOWN_LINES:]]
    return "\n".join([*lines, f"rank {rank} stopped answering: its process ended with {code}"])


def in_run(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether torchrun or a rank 0 started this process as a rank of several."""
    return "RANK" in environment and "MASTER_PORT" in environment and int(environment.get("WORLD_SIZE", 1)) > 1


def ranks_for(tensor_parallel: int) -> Ranks:
    """The ranks that share the target: torchrun's, or ones started here. Raises UsageError where the numbers differ."""
    if not in_run():
        return ALONE if tensor_parallel == 1 else start_run(tensor_parallel)
    ranks = join_run()
    if tensor_parallel not in (1, ranks.size):
        problem = f"--tensor-parallel {tensor_parallel}: torchrun started {ranks.size} processes; leave the option out"
        raise UsageError(problem)
    return ranks


@cache
def join_run() -> Ranks:
    """Join the environment's run, the only one of this process. Raises SpecprefillError where the ranks cannot meet."""
    import torch.distributed as dist

    try:
        store, rank, size = next(iter(dist.rendezvous("env://")))
    except (RuntimeError, ValueError) as error:
        raise SpecprefillError(f"the ranks cannot meet ({first_line(error)}); start torchrun again") from error
    ranks = connect_ranks(rank, size, store)
    if ranks.leads:
        # When a rank has died, torchrun sends SIGTERM to the others.
        signal.signal(signal.SIGTERM, lambda *_: end_process(ranks.failure_of_others()))
    return ranks


@cache
def start_run(size: int) -> Ranks:
    """Start ranks 1, 2, ... on this machine and lead them. Raises UsageError for more ranks than GPUs.

    Rank 0 stays the process that the user called: it keeps its standard streams, terminal, exit code and Ctrl-C.
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
    # The libuv store of some versions of torch cannot take our socket.
    fd = listening.detach()
    store = dist.TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=fd, use_libuv=False)
    env = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": host, "MASTER_PORT": str(port)}
    processes = RankProcesses(size, env)
    atexit.register(processes.close, keep_logs=False)
    return connect_ranks(0, size, store, processes)


def follow_rank_0() -> NoReturn:
    """On ranks 1, 2, ...: do what rank 0 sends until it ends the run, or is lost."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A handler in Python would wait for the collective that this process is usually in.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Standard input and output belong to rank 0.
    for descriptor in (0, 1):
        os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    ranks = join_run()
    shard = Shard(ranks)
    while True:
        try:
            ranks.receive()(shard)
        except Exception as error:
            ranks.fail(error)


def end_with(parent: int) -> NoReturn:
    """End this process when its parent ends: it may wait for a collective that never returns."""
    while os.getppid() == parent:
        time.sleep(POLLING)
    os._exit(0)


def connect_ranks(rank: int, size: int, store: "Store", processes: RankProcesses | None = None) -> Ranks:
    """Wait for all ranks and connect them: gloo for tensors on the CPU, NCCL between GPUs."""
    import torch
    import torch.distributed as dist

    local = int(os.environ.get("LOCAL_RANK", rank))
    on_gpus = torch.cuda.is_available()
    if on_gpus:
        torch.cuda.set_device(local)
    elif "OMP_NUM_THREADS" not in os.environ:
        neighbours = int(os.environ.get("LOCAL_WORLD_SIZE", size))
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // neighbours))
    backend = "cpu:gloo,cuda:nccl" if on_gpus else "gloo"
    dist.init_process_group(backend, store=dist.PrefixStore("group", store), rank=rank, world_size=size)
    return Ranks(rank, size, local, store, dist.new_group(backend="gloo", timeout=NO_LIMIT), processes)

"""Ray and its machines: how many workers they have room for, and whether they have what a batch needs."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from packaging.version import Version

from specprefill_cli.batching.preflight import Needs, missing_here
from specprefill_cli.errors import SpecprefillError, first_line
from specprefill_cli.installation import install_command

OLDEST = Version("2.50")
# Seconds to reach a cluster, and for a node to answer before the first row.
CONNECTING, PATIENCE = 10, 300

# As `ray.nodes` describes one.
Node = Mapping[str, Any]


def import_ray() -> Any:
    """The module. Raises SpecprefillError where it is missing or too old."""
    # Ray would tell its makers about every cluster that it starts.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray: Any = import_module("ray")
    except ImportError as error:
        raise SpecprefillError(f"--ray needs the package ray; install it with {install_command('cluster')}") from error
    if Version(ray.__version__) < OLDEST:
        raise SpecprefillError(
            f"--ray needs ray {OLDEST} or newer, this is {ray.__version__}; install it with {install_command('cluster')}"
        )
    return ray


def check_reachable(address: str) -> None:
    """Raises SpecprefillError for a host and port that nothing listens to; Ray would try for minutes."""
    host, colon, port = address.rpartition(":")
    if not colon:
        return
    try:
        socket.create_connection((host, int(port)), timeout=CONNECTING).close()
    except (OSError, ValueError) as error:
        raise no_cluster(address, first_line(error)) from error


def no_cluster(address: str, reason: str) -> SpecprefillError:
    """The error of an address without a cluster that can be used."""
    return SpecprefillError(
        f"--ray {address}: no Ray cluster there ({reason}); check it with `ray status`, set RAY_AUTH_MODE=token if it asks for a "
        "token, or leave the address out to start Ray on this machine"
    )


@contextmanager
def own_signals() -> Iterator[None]:
    """Keep the handlers of signals, which Ray replaces."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def divide(nodes: Sequence[Node], workers: int | None, gpus: int) -> tuple[int, dict[str, float]]:
    """How many workers a cluster gets, and the options that say what each of them takes of its node.

    Raises SpecprefillError for more workers than there is room for.
    """
    kind, each = ("GPU", gpus) if gpus and any(node["Resources"].get("GPU") for node in nodes) else ("CPU", 1)
    able = [node["Resources"] for node in nodes if node["Resources"].get(kind, 0) >= each]
    room = sum(int(resources[kind]) // each for resources in able)
    places = workers or (room if kind == "GPU" else len(able))
    if not 0 < places <= room:
        raise SpecprefillError(
            f"--ray: the cluster has room for {room} workers of {each} {kind}(s) each, and {max(places, 1)} are needed; "
            "give fewer --workers, or add nodes"
        )
    if kind == "CPU":
        a_node = -(-places // len(able))
        return places, {"num_cpus": max(1, int(min(resources["CPU"] for resources in able)) // a_node)}
    cores = min(resources.get("CPU", 0) * each / resources["GPU"] for resources in able)
    return places, {"num_gpus": each, "num_cpus": max(1, int(cores))}


def fits(node: Node, options: Mapping[str, float]) -> bool:
    """Whether an actor with these options can ever run on a node."""
    kinds = {"num_cpus": "CPU", "num_gpus": "GPU"}
    return all(node["Resources"].get(kinds[name], 0) >= amount for name, amount in options.items())


def check_nodes(ray: Any, nodes: Sequence[Node], needs: Needs) -> None:
    """Raises SpecprefillError, naming the node, where one lacks what the batch needs."""
    strategy = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    check = ray.remote(missing_here)
    checks = [
        check.options(num_cpus=0, scheduling_strategy=strategy(node["NodeID"], soft=False)).remote(needs)
        for node in nodes
    ]
    for node, result in zip(nodes, checks, strict=True):
        try:
            missing = ray.get(result, timeout=PATIENCE)
        except Exception as error:
            missing = f"cannot be checked ({first_line(getattr(error, 'cause', None) or error)}); is specprefill installed there?"
        if missing:
            raise SpecprefillError(
                f"--ray: node {node['NodeManagerHostname']} ({node['NodeManagerAddress']}): {missing}"
            )

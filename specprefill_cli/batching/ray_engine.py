"""Ray actors answer rows, on this machine or on a cluster; Ray restarts lost actors and resubmits their rows."""

import logging
import math
import os
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack, redirect_stdout
from functools import partial
from importlib import import_module
from queue import SimpleQueue
from typing import Any

from specprefill_cli.batching import BatchEnded, check_engine
from specprefill_cli.engine.request import LAST, Engine, Event, EventCallback, Failed, QueueFull, Request
from specprefill_cli.errors import SpecprefillError, first_line, pip_command

# Seconds to wait for a cluster to answer.
CONNECTING = 10
# How often a row is retried after its actor was lost.
RETRIES = 2


class WorkerLost(SpecprefillError):
    """Every actor that was given a row was lost before it answered."""


class EngineActor:
    """An actor with its own engine. opener: opens the engine in the actor's process."""

    def __init__(self, opener: Callable[[], Engine]) -> None:
        self.engine: Engine | None = None
        self.refusal: SpecprefillError | None = None
        # Do not raise here: Ray would restart an actor whose constructor fails, again and again.
        try:
            self.engine = opener()
        except SpecprefillError as error:
            self.refusal = error

    def refused(self) -> SpecprefillError | None:
        return self.refusal

    def answer(self, request: Request) -> Event:
        """Answer a request and return its last event. Raises BatchEnded if the engine did not open after a restart."""
        if self.engine is None:
            raise BatchEnded(f"{self.refusal}; run again with --resume")
        events: SimpleQueue[Event] = SimpleQueue()
        try:
            self.engine.submit(request, events.put)
            event = next(event for event in iter(events.get, None) if isinstance(event, LAST))
            if isinstance(event, Failed):
                check_engine(event.error)
        except (BatchEnded, QueueFull):
            # Ray then starts a new process, which can use the device again.
            os._exit(1)
        return event


class RayEngine(Engine):
    """Sends each request to the actor with the fewest requests; an actor answers `requests` at once."""

    def __init__(self, ray: Any, actors: list[Any], requests: int, connection: ExitStack) -> None:
        self.lost = ray.exceptions.RayActorError
        self.ray, self.actors, self.connection = ray, actors, connection
        self.capacity = len(actors) * requests
        self.held = [0] * len(actors)

    def submit(self, request: Request, on_event: EventCallback) -> Any:
        place = self.held.index(min(self.held))
        self.held[place] += 1
        object_ref = self.actors[place].answer.remote(request)
        object_ref.future().add_done_callback(partial(self.take, place, on_event))
        return object_ref

    def take(self, place: int, on_event: EventCallback, future: Any) -> None:
        """Deliver what an actor returned. Runs in a thread of Ray, which must not call Ray."""
        self.held[place] -= 1
        try:
            on_event(future.result())
        except self.lost as error:
            reason = f"asked {RETRIES + 1} times, and each time the worker was lost ({first_line(error)})"
            on_event(Failed(WorkerLost(reason)))
        except Exception as error:
            on_event(Failed(getattr(error, "cause", None) or error))

    def close(self) -> None:
        for actor in self.actors:
            self.ray.kill(actor)
        self.connection.close()


def connect_to_ray(
    opener: Callable[[], Engine], address: str | None, workers: int | None, gpus: int, requests: int = 1
) -> RayEngine:
    """Connect to a cluster, or start Ray on this machine, and open the actors.

    address: `auto` or host and port; None: this machine
    workers: None: as many as the cluster has GPUs for, or a worker per node if it has no GPUs; gpus: GPUs per worker

    Raises SpecprefillError if Ray is missing, the cluster is unreachable or too small, or an engine does not open.
    """
    ray = import_ray()
    with ExitStack() as connection:
        # Ray prints what happens to its processes to standard output, whatever its log level.
        connection.enter_context(redirect_stdout(connection.enter_context(open(os.devnull, "w"))))
        connection.callback(ray.shutdown)
        start_ray(ray, address, workers)
        worker_count, resources = divide_cluster(ray, workers, gpus)
        options = {"max_restarts": -1, "max_task_retries": RETRIES, "max_concurrency": requests + 1}
        actor_class = ray.remote(EngineActor).options(**resources, **options, scheduling_strategy="SPREAD")
        actors = [actor_class.remote(opener) for _ in range(worker_count)]
        try:
            refusals = ray.get([actor.refused.remote() for actor in actors])
        except Exception as error:
            cause = getattr(error, "cause", None) or error
            raise SpecprefillError(f"--ray: a worker cannot be opened ({first_line(cause)})") from error
        for refusal in filter(None, refusals):
            raise refusal
        return RayEngine(ray, actors, requests, connection.pop_all())


def start_ray(ray: Any, address: str | None, workers: int | None) -> None:
    """Connect to Ray. Raises SpecprefillError if that fails."""
    # Ray replaces the signal handlers: restore them afterwards.
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # Run all workers even on a machine with fewer cores.
    own = {"num_cpus": max(os.cpu_count() or 1, workers or 1), "include_dashboard": False} if address is None else {}
    try:
        host, _, port = (address or "").rpartition(":")
        if host:
            # Try the port first: Ray would retry for minutes.
            socket.create_connection((host, int(port)), timeout=CONNECTING).close()
        ray.init(address=address or "local", log_to_driver=False, logging_level=logging.CRITICAL, **own)
    except Exception as error:
        # Ray's own errors share no base class with Python's.
        raise SpecprefillError(
            f"--ray {address or 'local'}: no Ray cluster there ({first_line(error)}); check it with `ray status`, set "
            "RAY_AUTH_MODE=token if it asks for a token, or give --workers alone to start Ray on this machine"
        ) from error
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def import_ray() -> Any:
    """Import the module `ray`. Raises SpecprefillError if it is missing."""
    # Turn off Ray's usage reports.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        return import_module("ray")
    except ImportError as error:
        reason = f"--workers and --ray need the package ray; install it with {pip_command('ray')}"
        raise SpecprefillError(reason) from error


def divide_cluster(ray: Any, workers: int | None, gpus: int) -> tuple[int, Mapping[str, float]]:
    """The number of workers, and Ray's options for the resources of each. Raises SpecprefillError without room for them."""
    available = ray.cluster_resources()
    resource, per_worker = ("GPU", gpus) if gpus and available.get("GPU") else ("CPU", 1)
    # Leave out nodes without the resource: a head node often has none for workers.
    held = [node["Resources"] for node in ray.nodes() if node["Alive"] and node["Resources"].get(resource)]
    # Ray would wait forever for a worker that fits on no node.
    room = [int(amounts[resource]) // per_worker for amounts in held]
    worker_count = workers or (sum(room) if resource == "GPU" else len(held))
    if not 0 < worker_count <= sum(room):
        need = f"{max(worker_count, 1)} workers need {per_worker} each on one node; give fewer --workers, or add nodes"
        raise SpecprefillError(f"--ray: the cluster has {available.get(resource, 0):g} {resource}(s), and {need}")
    most = room if resource == "GPU" else [math.ceil(worker_count / len(held))] * len(held)
    cores = max(1, min(int(node.get("CPU", 0)) // count for node, count in zip(held, most, strict=True) if count))
    return worker_count, {"num_gpus": per_worker, "num_cpus": cores} if resource == "GPU" else {"num_cpus": cores}

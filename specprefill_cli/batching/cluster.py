"""Workers as Ray actors, on this machine or on a cluster. Nothing of Ray is imported before `connect` is called."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, redirect_stdout
from functools import partial
from typing import Any

from specprefill_cli.batching.executor import AHEAD, Event, Inbox, Lost, Opener, Place, Task, Told
from specprefill_cli.batching.nodes import (
    check_nodes,
    check_reachable,
    divide,
    fits,
    import_ray,
    no_cluster,
    own_signals,
)
from specprefill_cli.batching.preflight import Needs
from specprefill_cli.batching.worker import Worker
from specprefill_cli.errors import first_line

LOCAL = "local"
# Seconds until an actor must have found its place.
PATIENCE = 300


class RayActors:
    """An actor for each place. Ray must be connected.

    ray: the module; opener: opens the session of a worker; resources: of an actor, as Ray's options
    connection: closed at the end
    """

    depth = 1

    def __init__(
        self, ray: Any, opener: Opener, places: int, resources: Mapping[str, float], connection: ExitStack
    ) -> None:
        self.ray, self.opener, self.places, self.connection = ray, opener, places, connection
        self.window = places * AHEAD
        self.actor_class = ray.remote(RowActor).options(**resources, scheduling_strategy="SPREAD")
        self.actors: dict[int, Any] = {}
        # The latest one of each place.
        self.workers: dict[int, int] = {}

    def start(self, worker: int, place: int, inbox: Inbox) -> None:
        # One whose device has failed is alive, and holds its GPU.
        if place in self.workers:
            self.ray.kill(self.actors.pop(self.workers[place]))
        self.workers[place], self.inbox = worker, inbox
        # Ray divides cores and GPUs.
        self.actors[worker] = self.actor_class.remote(Worker(worker, self.opener, Place()))
        late = Lost(worker, f"no machine of the cluster had room for it for {PATIENCE} s")
        timer = threading.Timer(PATIENCE, inbox.put, [late])
        timer.daemon = True
        timer.start()
        self.actors[worker].exists.remote().future().add_done_callback(lambda _: timer.cancel())
        self.follow(worker, self.actors[worker].open.remote())

    def send(self, worker: int, task: Task) -> None:
        self.follow(worker, self.actors[worker].answer.remote(task))

    def follow(self, worker: int, result: Any) -> None:
        """Put the events that a call of an actor returns into the inbox, when it has ended."""
        result.future().add_done_callback(partial(deliver, worker, self.inbox))

    def close(self) -> None:
        for actor in self.actors.values():
            self.ray.kill(actor)
        self.connection.close()


def deliver(worker: int, inbox: Inbox, result: Any) -> None:
    """Take what a call of an actor has returned; in a thread of Ray's, which must not call Ray."""
    try:
        events = result.result()
    except Exception as error:
        events = [Lost(worker, first_line(error))]
    for event in events:
        inbox.put(event)


class RowActor:
    """An actor with one session."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.told: list[Event] = []

    def exists(self) -> None:
        """Return where the actor has been created."""

    def open(self) -> list[Event]:
        """Open the session."""
        return [*self.told_by(self.worker.open(self.tell))]

    def answer(self, task: Task) -> list[Event]:
        """Answer a row."""
        return [*self.told_by(self.worker.answer(task))]

    def tell(self, text: str) -> None:
        self.told.append(Told(self.worker.number, text))

    def told_by(self, event: Event) -> Iterator[Event]:
        """What the worker has told since the last call, then an event."""
        yield from self.told
        self.told.clear()
        yield event


def connect(opener: Opener, address: str, workers: int | None, gpus: int, needs: Needs) -> RayActors:
    """Connect to a cluster, or start Ray on this machine for `local`, and check all nodes.

    workers: None for as many as the cluster has GPUs for, or one a node where it has none; gpus: of each worker

    Raises SpecprefillError where Ray is missing or too old, the cluster cannot be reached or is too small, or a node lacks
    what the batch needs.
    """
    ray = import_ray()
    check_reachable(address)
    # A machine with fewer cores than workers runs them all the same.
    cores = max(os.cpu_count() or 1, workers or 1) if address == LOCAL else None
    with ExitStack() as connection:
        # Ray prints there what happens to its processes, whatever it is asked to log.
        connection.enter_context(redirect_stdout(connection.enter_context(open(os.devnull, "w"))))
        connection.callback(ray.shutdown)
        try:
            with own_signals():
                ray.init(
                    address=address,
                    num_cpus=cores,
                    include_dashboard=False if address == LOCAL else None,
                    log_to_driver=False,
                    logging_level=logging.CRITICAL,
                )
        except Exception as error:
            # Ray's own errors have no common base with Python's.
            raise no_cluster(address, first_line(error)) from error
        nodes = [node for node in ray.nodes() if node["Alive"]]
        places, resources = divide(nodes, workers, gpus)
        check_nodes(ray, [node for node in nodes if fits(node, resources)], needs)
        return RayActors(ray, opener, places, resources, connection.pop_all())

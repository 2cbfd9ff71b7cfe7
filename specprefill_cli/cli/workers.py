"""The options of `batch` about where its rows are answered: here, in processes on this machine, or on a Ray cluster."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from specprefill_cli.cli.console import Notes
from specprefill_cli.cli.help import Command
from specprefill_cli.cli.loading import check_target
from specprefill_cli.distributed.launch import in_run
from specprefill_cli.errors import UsageError
from specprefill_cli.settings import AUTO, Settings

if TYPE_CHECKING:
    from specprefill_cli.batching.executor import Executor, Opener, Place, Tell

PANEL = "Workers"
LOCAL = "local"
# Ray's addresses of a cluster: the one that this machine belongs to, or host and port.
ADDRESS = re.compile(r"auto|local|(\w+://)?[^\s/]+:\d+")
Workers = Annotated[
    int | None,
    typer.Option(
        help="Processes that each answer rows with a session of their own; 0 is this process alone.",
        min=0,
        max=1024,
        rich_help_panel=PANEL,
        show_default="1 on a GPU, else 0; with --ray what the cluster has room for",
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        help="Workers are actors of the Ray cluster at this address (auto, or HOST:PORT); without one, Ray is started here.",
        metavar="[ADDRESS]",
        rich_help_panel=PANEL,
        show_default="none",
    ),
]


class RayAddressCommand(Command):
    """A command whose `--ray` may stand without an address."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_address(args))


def with_address(arguments: Sequence[str]) -> list[str]:
    """The arguments with `local` behind a `--ray` that has no address."""
    completed: list[str] = []
    for argument, following in pairwise([*arguments, ""]):
        completed.append(argument)
        if argument == "--ray" and not ADDRESS.fullmatch(following):
            completed.append(LOCAL)
    return completed


class RelayedNotes(Notes):
    """Notes of a worker, which the driver shows."""

    def __init__(self, tell: Tell) -> None:
        super().__init__(quiet=True)
        self.relay = tell

    def tell(self, text: str) -> None:
        self.relay(text)

    def warn(self, text: str) -> None:
        self.relay(f"warning: {text}")


def open_executor(
    opener: Opener,
    settings: Settings,
    workers: int | None,
    ray: str | None,
    questions: tuple[BinaryIO, bool],
    notes: Notes,
    concurrency: int | None = 1,
) -> Executor | None:
    """The workers that the options ask for; None for this process.

    questions: the input, and whether its rows may lack documents; concurrency: rows at once in a process, None: automatic

    Raises SpecprefillError where a Ray cluster cannot be used, or a model is not here.
    """
    if ray is not None:
        from specprefill_cli.batching.cluster import connect
        from specprefill_cli.batching.preflight import needs_of
        from specprefill_cli.batching.rows import documents_in

        gpus = 0 if settings.devices == "cpu" else settings.tensor_parallel
        with notes.progress("connecting to Ray, and checking its nodes"):
            return connect(opener, ray, workers, gpus, needs_of(settings, documents_in(*questions)))
    check_target(settings)
    places = default_workers(settings) if workers is None else workers
    if places == 0:
        return None
    from specprefill_cli.batching.executor import AHEAD
    from specprefill_cli.batching.processes import Processes

    return Processes(opener, places, depth=2 * concurrency if concurrency else AHEAD)


def check_workers(settings: Settings, workers: int | None, ray: str | None) -> None:
    """Raises UsageError for options that exclude each other."""
    if (workers or ray) and in_run():
        raise UsageError("--workers and --ray start processes, as torchrun did already; leave them or torchrun out")
    if ray is not None and workers == 0:
        raise UsageError("--workers 0 --ray: an actor is no part of this process; give at least 1")
    if ray is not None and "://" in ray:
        raise UsageError(f"--ray {ray}: no Ray client; run on a machine of the cluster, and give auto or HOST:PORT")
    if workers and settings.tensor_parallel > 1 and ray is None:
        raise UsageError(
            "--workers with --tensor-parallel: the GPUs would have to be divided; give --ray, which does so"
        )


def default_workers(settings: Settings) -> int:
    """1 where the session will run on an accelerator, because its failure ends a process for good; else 0."""
    if settings.devices == "cpu" or settings.tensor_parallel > 1 or in_run():
        return 0
    if settings.devices != AUTO:
        return 1
    from specprefill_cli.models.light_import import collection_paused

    with collection_paused():
        import torch
    return int(torch.cuda.is_available())


def settings_of_place(settings: Settings, place: Place) -> Settings:
    """A worker's settings, with its share of the GPUs; its share of the cores is set."""
    if place.count == 1:
        return settings
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // place.count))
    return settings.varied(devices=devices_of_place(settings.devices, place, torch.cuda.device_count()))


def devices_of_place(devices: str, place: Place, visible: int) -> str:
    """A worker's share of `--devices`; where there are more workers than GPUs, several share one.

    visible: number of GPUs here
    """
    names = [f"cuda:{number}" for number in range(visible)] if devices == AUTO else devices.split(",")
    if not names or not names[0].strip().startswith("cuda"):
        return devices
    begin, end = (number * len(names) // place.count for number in (place.number, place.number + 1))
    return ",".join(names[begin:end] or [names[place.number % len(names)]])

"""Updates that can be resumed: how the draft, the encoder and the adapter of `smollm2` are trained."""

import json
import math
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specprefill_cli.errors import SpecprefillError

CLIP = 1.0


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The updates of a run, resumed parts included, and their learning rate.

    rate: the highest; warmup: updates in which it rises; cooldown: updates at the end in which it falls to zero
    measure_every: updates between measurements, after each of which the run is saved
    """

    updates: int
    rate: float
    cooldown: int
    warmup: int = 20
    measure_every: int = 40
    seed: int = 1

    def rate_at(self, update: int) -> float:
        """The learning rate of an update: it rises, stays, and falls linearly."""
        return self.rate * min(1.0, (update + 1) / self.warmup, (self.updates - update) / self.cooldown)


def run_updates(
    parameters: Mapping[str, Tensor],
    optimizers: Sequence[torch.optim.Optimizer],
    schedule: Schedule,
    folder: Path,
    losses: Callable[[random.Random, float], Iterable[Tensor]],
    measure: Callable[[], Mapping[str, Any]] = dict,
    save: Callable[[], None] = lambda: None,
) -> None:
    """Train the parameters to the schedule's end; resume from `folder/checkpoint.pt`, and log to `folder/log.jsonl`.

    losses: the parts of an update's loss, from a generator that depends on the update alone, and the progress from 0 to 1
    measure: figures for the log, before the first update too; save: writes the result

    Raises SpecprefillError for a loss that is not finite.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, began = folder / "checkpoint.pt", time.monotonic()
    first = resume(path, parameters, optimizers) if path.exists() else 0
    for update in range(first, schedule.updates + 1):
        if update % schedule.measure_every == 0 or update == schedule.updates:
            append_log(folder, update=update, **measure())
            tensors = {name: parameter.detach() for name, parameter in parameters.items()}
            states = [optimizer.state_dict() for optimizer in optimizers]
            partial = folder / "checkpoint.partial"
            torch.save({"parameters": tensors, "optimizers": states, "updates": update}, partial)
            # Whole or not at all.
            partial.replace(path)
            save()
        if update == schedule.updates:
            break
        total = 0.0
        for loss in losses(random.Random(schedule.seed * 1_000_000 + update), update / schedule.updates):
            loss.backward()
            total += loss.item()
        if not math.isfinite(total):
            raise SpecprefillError(f"update {update}: the loss is {total}; resume from the checkpoint at a lower rate")
        torch.nn.utils.clip_grad_norm_(parameters.values(), CLIP)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = schedule.rate_at(update)
            optimizer.step()
            optimizer.zero_grad()
        append_log(folder, update=update, loss=round(total, 4), seconds=round(time.monotonic() - began))


def resume(path: Path, parameters: Mapping[str, Tensor], optimizers: Sequence[torch.optim.Optimizer]) -> int:
    """Load a checkpoint; return the number of updates before it."""
    state = torch.load(path, map_location="cpu", weights_only=True)
    for name, parameter in parameters.items():
        parameter.data.copy_(state["parameters"][name])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    return state["updates"]


def append_log(folder: Path, **values: Any) -> None:
    """Append a line of JSON to the log, and print it."""
    line = json.dumps(values)
    print(line, flush=True)
    with (folder / "log.jsonl").open("a", encoding="utf-8") as log:
        log.write(line + "\n")

"""Updates with AdamW that can be resumed: how the encoder and the adapter of `smollm2` are trained."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specprefill_cli.training.train import append_log, save_checkpoint

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
    schedule: Schedule,
    folder: Path,
    losses: Callable[[random.Random], Iterable[Tensor]],
    measure: Callable[[], Mapping[str, Any]],
    save: Callable[[], None],
    **options: Any,
) -> None:
    """Train the parameters to the schedule's end; resume from `folder/checkpoint.pt`, and log to `folder/log.jsonl`.

    losses: the parts of an update's loss, drawn with a generator that depends on the update alone
    measure: figures for the log, before the first update too; save: writes the result; options: of AdamW
    """
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    optimizer, first, path = torch.optim.AdamW(parameters.values(), **options), 0, folder / "checkpoint.pt"
    if path.exists():
        state = torch.load(path, map_location="cpu", weights_only=True)
        for name, parameter in parameters.items():
            parameter.data.copy_(state["parameters"][name])
        optimizer.load_state_dict(state["optimizer"])
        first = state["updates"]
    began = time.monotonic()
    for update in range(first, schedule.updates + 1):
        if update % schedule.measure_every == 0 or update == schedule.updates:
            append_log(folder / "log.jsonl", update=update, **measure())
            tensors = {name: parameter.detach() for name, parameter in parameters.items()}
            state = {"parameters": tensors, "optimizer": optimizer.state_dict(), "updates": update}
            save_checkpoint(state, folder)
            save()
        if update == schedule.updates:
            break
        total = 0.0
        for loss in losses(random.Random(schedule.seed * 1_000_000 + update)):
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(parameters.values(), CLIP)
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate_at(update)
        optimizer.step()
        optimizer.zero_grad()
        append_log(folder / "log.jsonl", update=update, loss=round(total, 4), seconds=round(time.monotonic() - began))

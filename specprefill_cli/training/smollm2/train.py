"""Trains the adapter of `smollm2` on one core, and measures it on questions whose contexts training never sees."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specprefill_cli.training.smollm2.network import AdaptedModel
from specprefill_cli.training.smollm2.rows import ChatRow
from specprefill_cli.training.smollm2.source import ChatRowSource, rows_to_measure
from specprefill_cli.training.synthesis import NOT_FOUND
from specprefill_cli.training.updates import Schedule, run_updates

BASE = "HuggingFaceTB/SmolLM2-135M-Instruct"
MEASURED_QUESTIONS = 300


def train_adapter(
    source: ChatRowSource, schedule: Schedule, rows: int, folder: Path, start: Path | None = None
) -> None:
    """Train on `rows` rows an update; write checkpoint, log and adapter to `folder`. start: an adapter to begin with."""
    torch.manual_seed(schedule.seed)
    model = AdaptedModel(source.model)
    if start is not None:
        model.load(start)
    maker, held_out = source.makers(schedule.seed)
    not_found = [*maker.ids(NOT_FOUND), maker.end]
    measured = rows_to_measure(held_out, MEASURED_QUESTIONS)

    def losses(rng: random.Random, _progress: float) -> Iterator[Tensor]:
        model.merge()
        maker.rng.setstate(rng.getstate())
        drawn = [maker.row() for _ in range(rows)]
        weight = sum(float(row.weights.sum()) for row in drawn)
        return ((model.losses(row)[0] * row.weights).sum() / weight for row in drawn)

    run_updates(
        model.adapters,
        [torch.optim.AdamW(model.adapters.values(), betas=(0.9, 0.98), weight_decay=0.0)],
        schedule,
        folder,
        losses,
        lambda: measure(model, measured, not_found),
        lambda: model.save(folder / "adapter", BASE),
    )


@torch.no_grad()
def measure(model: AdaptedModel, rows: Sequence[ChatRow], not_found: Sequence[int]) -> dict[str, Any]:
    """The loss, and the percentage of questions that greedy decoding would answer exactly.

    not_found: tokens of that answer, whose questions are counted apart
    """
    model.merge()
    losses, outcomes = [], {True: [], False: []}
    for row in rows:
        loss, correct = model.losses(row)
        losses.append(loss)
        numbers = row.segments[row.answers]
        for number in numbers.unique():
            answer = numbers == number
            outcomes[row.targets[answer].tolist() == list(not_found)].append(bool(correct[answer].all()))
    exact, refused = (round(100 * sum(found) / max(1, len(found)), 1) for found in (outcomes[False], outcomes[True]))
    return {"held_out_loss": round(float(torch.cat(losses).mean()), 4), "exact": exact, "not_found": refused}

"""Trains the adapter with a process for each core: the leader applies updates, the helpers add gradients.

Helpers compute gradients with the weights that they last saw and add them to a shared buffer, which enters the next update.
A slow helper delays nobody, but a helper that is paused or killed while it holds the lock stops the run: stop all processes
together, and run helpers at the leader's priority.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as multiprocessing
from torch import Tensor

from specprefill_cli.training.smollm2.network import AdaptedModel, Rank
from specprefill_cli.training.smollm2.rows import ChatRow, ChatRowMaker
from specprefill_cli.training.smollm2.source import ChatRowSource, rows_to_measure
from specprefill_cli.training.synthesis import NOT_FOUND
from specprefill_cli.training.train import append_log, save_checkpoint

CLIP = 1.0
SECONDS_BETWEEN_SAVES = 240.0


@dataclass(frozen=True, kw_only=True)
class AdapterSettings:
    """How the adapter is trained.

    rows: of an update; rate: highest learning rate; warmup: updates in which it rises
    updates: after which the rate has fallen to zero; cooldown: how many updates before that it begins to fall
    measure_every: updates between measurements on `questions` held-out questions
    processes: the leader and its helpers
    """

    rows: int = 10
    rate: float = 5e-4
    warmup: int = 20
    updates: int = 1_000
    cooldown: int = 200
    measure_every: int = 50
    questions: int = 300
    processes: int = 2
    seed: int = 1

    def rate_at(self, update: int) -> float:
        """The learning rate of an update: it rises, stays, and falls linearly."""
        rise = min(1.0, (update + 1) / self.warmup)
        fall = min(1.0, max(0.0, (self.updates - update) / self.cooldown))
        return self.rate * min(rise, fall)


class Exchange:
    """What the processes share: parameters and helpers' gradients [P], and counts (version, rows, tokens, loss, weight)."""

    def __init__(self, size: int) -> None:
        self.parameters = torch.zeros(size).share_memory_()
        self.gradient = torch.zeros(size).share_memory_()
        self.version = torch.zeros(1, dtype=torch.long).share_memory_()
        self.counts = torch.zeros(4, dtype=torch.double).share_memory_()
        self.lock = multiprocessing.get_context("spawn").Lock()

    def publish(self, parameters: Tensor) -> None:
        """Make new parameters [P] known to the helpers."""
        with self.lock:
            self.parameters.copy_(parameters)
            self.version += 1

    def add(self, gradient: Tensor, counts: Tensor) -> None:
        """Add a helper's gradient [P] and its counts [4]."""
        with self.lock:
            self.gradient += gradient
            self.counts += counts

    def take(self) -> tuple[Tensor, Tensor]:
        """The helpers' gradient [P] and counts [4] since the last call."""
        with self.lock:
            taken = self.gradient.clone(), self.counts.clone()
            self.gradient.zero_()
            self.counts.zero_()
        return taken


def help_training(source: ChatRowSource, rank: Rank, exchange: Exchange, seed: int) -> None:
    """Compute gradients for ever; the leader ends this process."""
    torch.set_num_threads(1)
    maker, _ = source.makers(seed)
    model = AdaptedModel(source.model, rank)
    version = -1
    while True:
        row = maker.row()
        if int(exchange.version) != version:
            with exchange.lock:
                version = int(exchange.version)
                model.parameters.copy_(exchange.parameters)
            model.update()
        model.gradient.zero_()
        counts = model.accumulate(row)
        exchange.add(model.gradient, counts)


class AdapterTrainer:
    """Model, optimiser and counts of a run; its state is saved in `folder/checkpoint.pt`, its log in `folder/log.jsonl`."""

    def __init__(self, model: AdaptedModel, settings: AdapterSettings, folder: Path) -> None:
        self.model, self.settings, self.folder = model, settings, folder
        self.optimizer = torch.optim.AdamW([model.parameters], lr=settings.rate, betas=(0.9, 0.98), weight_decay=0.0)
        self.updates = self.rows = self.tokens = 0
        self.seconds = 0.0
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "checkpoint.pt"
        if path.exists():
            state = torch.load(path, map_location="cpu", weights_only=True)
            model.parameters.copy_(state["parameters"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.updates, self.rows, self.tokens, self.seconds = state["counts"]

    def save(self) -> None:
        """Write checkpoint and adapter."""
        state = {
            "parameters": self.model.parameters,
            "optimizer": self.optimizer.state_dict(),
            "counts": (self.updates, self.rows, self.tokens, self.seconds),
        }
        save_checkpoint(state, self.folder)
        self.model.save(self.folder / "adapter", "HuggingFaceTB/SmolLM2-135M-Instruct")

    def log(self, **values: Any) -> None:
        """Log values beside the counts."""
        append_log(self.folder / "log.jsonl", update=self.updates, rows=self.rows, tokens=self.tokens, **values)

    def update(self, gradient: Tensor, counts: Tensor) -> None:
        """Apply the gradient [P] of rows with these counts [4]."""
        gradient = gradient / float(counts[3])
        norm = float(gradient.norm())
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.rate_at(self.updates)
        self.model.parameters.grad = gradient * min(1.0, CLIP / max(norm, 1e-9))
        self.optimizer.step()
        self.model.update()
        self.updates += 1
        self.rows += int(counts[0])
        self.tokens += int(counts[1])
        self.log(loss=round(float(counts[2] / counts[3]), 4), norm=round(norm, 3), seconds=round(self.seconds))

    def measure(self, rows: Sequence[ChatRow], not_found: Sequence[int]) -> None:
        """Log the loss, and the percentage of held-out questions that greedy decoding would answer exactly.

        not_found: tokens of that answer, whose questions are counted apart
        """
        losses: list[Tensor] = []
        answered: list[bool] = []
        refused: list[bool] = []
        for row in rows:
            loss, correct = self.model.hits(row)
            losses.append(loss)
            numbers = row.segments[row.answers]
            for number in numbers.unique():
                answer = numbers == number
                counted = refused if row.targets[answer].tolist() == list(not_found) else answered
                counted.append(bool(correct[answer].all()))
        self.log(
            held_out_loss=round(float(torch.cat(losses).mean()), 4),
            exact=percentage(answered),
            not_found=percentage(refused),
            questions=len(answered) + len(refused),
        )


def percentage(outcomes: Sequence[bool]) -> float:
    """The percentage of true outcomes."""
    return round(100 * sum(outcomes) / max(1, len(outcomes)), 1)


def train_adapter(
    source: ChatRowSource, settings: AdapterSettings, rank: Rank, folder: Path, start: Path | None = None
) -> None:
    """Train until `updates` are done, from a checkpoint in `folder`, the adapter `start`, or a fresh adapter."""
    torch.set_num_threads(1)
    model = AdaptedModel(source.model, rank)
    model.reset(settings.seed)
    if start is not None:
        model.load(start)
    trainer = AdapterTrainer(model, settings, folder)
    exchange = Exchange(len(model.parameters))
    exchange.publish(model.parameters)
    context = multiprocessing.get_context("spawn")
    helpers = [
        context.Process(
            target=help_training, args=(source, rank, exchange, settings.seed + 1_000 * number), daemon=True
        )
        for number in range(1, settings.processes)
    ]
    for helper in helpers:
        helper.start()
    # A resumed run draws other rows than before.
    maker, held_out = source.makers(settings.seed + 1_000_000 * (1 + trainer.updates))
    not_found = [*maker.ids(NOT_FOUND), maker.end]
    measured = rows_to_measure(held_out, settings.questions)
    model.update()
    trainer.measure(measured, not_found)
    saved = clock = time.monotonic()
    while trainer.updates < settings.updates:
        gradient, counts = collect(model, maker, exchange, settings.rows)
        now = time.monotonic()
        trainer.seconds, clock = trainer.seconds + now - clock, now
        trainer.update(gradient, counts)
        exchange.publish(model.parameters)
        if trainer.updates % settings.measure_every == 0:
            trainer.measure(measured, not_found)
        if now - saved > SECONDS_BETWEEN_SAVES or trainer.updates == settings.updates:
            trainer.save()
            saved = now


def collect(model: AdaptedModel, maker: ChatRowMaker, exchange: Exchange, rows: int) -> tuple[Tensor, Tensor]:
    """The gradient [P] and counts [4] of at least `rows` rows, the helpers' included."""
    model.gradient.zero_()
    counts = torch.zeros(4, dtype=torch.double)
    while counts[0] + exchange.counts[0] < rows:
        counts += model.accumulate(maker.row())
    gradient, helpers_counts = exchange.take()
    return model.gradient + gradient, counts + helpers_counts

"""Training of the bundled draft: language modelling, guided attention, and distillation of the bundled target."""

from __future__ import annotations

import json
import math
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import LlamaModel

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.machine.placement import bfloat16_gain
from specprefill_cli.resources import BUNDLED_FOLDER
from specprefill_cli.training.batches import Batch, BatchStream
from specprefill_cli.training.network import LanguageModel, new_model
from specprefill_cli.training.recipe import ModelShape, TrainSettings

WEIGHT_DECAY = 0.05
SECONDS_BETWEEN_SAVES = 300.0
MOST_COMPILED = 64


class Trainer:
    """Holds the draft, its teacher, optimisers and the clock of a run; its state is saved in `folder/checkpoint.pt`.

    start: see `train`
    """

    def __init__(self, shape: ModelShape, settings: TrainSettings, folder: Path, start: Path | None = None) -> None:
        torch.manual_seed(settings.seed)
        self.settings = settings
        self.folder = folder
        # The faster dtype for matrix products.
        self.dtype = torch.float32 if bfloat16_gain(shape.hidden_size, shape.intermediate_size) < 1 else torch.bfloat16
        self.model = new_model(shape)
        teacher = LlamaModel.from_pretrained(BUNDLED_FOLDER / "target", dtype=torch.float32)
        self.teacher = LanguageModel(teacher).requires_grad_(False)
        parameters = dict(self.model.named_parameters())
        matrices = [p for name, p in parameters.items() if p.dim() == 2 and "embed" not in name]
        others = [p for name, p in parameters.items() if p.dim() != 2 or "embed" in name]
        self.optimizers: list[torch.optim.Optimizer] = [
            # Updates have the size of AdamW's.
            torch.optim.Muon(matrices, settings.rate, WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=settings.rate, weight_decay=0.0, betas=(0.9, 0.95)),
        ]
        self.seconds = 0.0
        self.steps = 0
        self.tokens = 0
        if start is not None:
            weights = load_file(start / "model.safetensors")
            self.model.load_state_dict({key: value.float() for key, value in weights.items()})
        self.resume()
        if settings.compile:
            # All layers share a compiled function, with an entry for every shape and row length.
            torch._dynamo.config.cache_size_limit = MOST_COMPILED
            for layer in (*self.model.model.layers, *self.teacher.model.layers):
                layer.compile(dynamic=False)

    def resume(self) -> None:
        """Load the run's checkpoint, if any."""
        path = self.folder / "checkpoint.pt"
        if not path.exists():
            return
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.seconds, self.steps, self.tokens = state["seconds"], state["steps"], state["tokens"]

    def save(self) -> None:
        """Write the checkpoint."""
        optimizers = [optimizer.state_dict() for optimizer in self.optimizers]
        counts = {"seconds": self.seconds, "steps": self.steps, "tokens": self.tokens}
        save_checkpoint({"model": self.model.state_dict(), "optimizers": optimizers, **counts}, self.folder)

    @property
    def progress(self) -> float:
        return min(1.0, self.seconds / (60 * self.settings.minutes))

    def rate_factor(self) -> float:
        """Learning-rate factor: linear warm-up, constant, linear cool-down to a twentieth."""
        rising = (self.steps + 1) / max(1, self.settings.warmup)
        falling = (1 - self.progress) / self.settings.cooldown if self.settings.cooldown else 1.0
        return max(0.05, min(1.0, rising, falling))

    def step(self, batch: Batch) -> dict[str, float]:
        """Update the draft with a batch; returns the losses by name."""
        with self.autocast():
            losses = self.losses(batch)
        losses["total"].backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.settings.rate * self.rate_factor()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        self.tokens += batch.tokens.numel()
        return {name: loss.item() for name, loss in losses.items()}

    def autocast(self) -> AbstractContextManager:
        in_bfloat16 = self.settings.compile and self.dtype == torch.bfloat16
        return torch.autocast("cpu", self.dtype) if in_bfloat16 else nullcontext()

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """The losses by name; the total includes the distillation loss, whose weight grows."""
        settings = self.settings
        states, region, pointer = self.model(batch.tokens, batch.positions, batch.probes)
        predicting = torch.cat([batch.answers, batch.texts])
        logits = self.model.logits(states.flatten(0, 1)[predicting]).float()
        token_losses = F.cross_entropy(logits, batch.tokens.flatten()[predicting + 1], reduction="none")
        answers = batch.answers.numel()
        zero = token_losses.new_zeros(())
        losses = {
            "answer": token_losses[:answers].mean() if answers else zero,
            "text": token_losses[answers:].mean() if token_losses.numel() > answers else zero,
            "region": region,
            "pointer": pointer,
            "imitation": zero,
        }
        if answers:
            with torch.no_grad():
                known = self.teacher(batch.tokens, batch.positions, None)[0].flatten(0, 1)[batch.answers]
                distribution = self.teacher.logits(known).float().softmax(-1)
            losses["imitation"] = -(distribution * logits[:answers].log_softmax(-1)).sum(-1).mean()
        weights = {
            "answer": 1.0,
            "text": settings.text_weight,
            "region": settings.region_weight,
            "pointer": settings.pointer_weight,
            "imitation": settings.distill_weight * min(1.0, 4 * self.progress),
        }
        total = torch.stack([weight * losses[name] for name, weight in weights.items()]).sum()
        return {"total": total, **losses}


def train(
    shape: ModelShape,
    settings: TrainSettings,
    stream: BatchStream,
    folder: Path,
    start: Path | None = None,
) -> Trainer:
    """Train until the end of the run's clock. Resumes from `folder/checkpoint.pt`, and logs to `folder/train.jsonl`.

    start: initial weights of a new run: the folder of an exported draft

    Raises SpecprefillError for a loss that is not finite.
    """
    folder.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(shape, settings, folder, start)
    # A resumed run gets new rows.
    stream.seed += trainer.steps
    loader = DataLoader(
        stream,
        batch_size=None,
        num_workers=settings.workers,
        multiprocessing_context="spawn" if settings.workers else None,
        prefetch_factor=4 if settings.workers else None,
    )
    averages: dict[str, float] = {}
    saved = trainer.seconds
    clock = None
    stream.progress.value = max(settings.curriculum_from, trainer.progress)
    # A complete run takes no further step.
    for batch in loader if trainer.progress < 1 else ():
        losses = trainer.step(batch)
        now = time.perf_counter()
        trainer.seconds += now - clock if clock is not None else 0.0
        clock = now
        stream.progress.value = max(settings.curriculum_from, trainer.progress)
        if not math.isfinite(sum(losses.values())):
            raise SpecprefillError(
                f"step {trainer.steps}: a loss is not finite: {losses}; resume from the checkpoint at a lower rate"
            )
        averages |= {key: 0.96 * averages.get(key, value) + 0.04 * value for key, value in losses.items()}
        if trainer.steps % 20 == 0:
            log(folder, trainer, averages)
        if trainer.seconds - saved > SECONDS_BETWEEN_SAVES:
            trainer.save()
            saved = trainer.seconds
        if trainer.progress >= 1:
            break
    trainer.save()
    return trainer


def log(folder: Path, trainer: Trainer, averages: dict[str, float]) -> None:
    append_log(
        folder / "train.jsonl",
        step=trainer.steps,
        minutes=round(trainer.seconds / 60, 2),
        tokens=trainer.tokens,
        tokens_per_second=round(trainer.tokens / max(trainer.seconds, 1e-9)),
        **{key: round(value, 3) for key, value in averages.items()},
    )


def append_log(path: Path, **values: Any) -> None:
    """Append a line of JSON to a log, and print it."""
    line = json.dumps(values)
    print(line, flush=True)
    with path.open("a", encoding="utf-8") as log:
        log.write(line + "\n")


def save_checkpoint(state: dict[str, Any], folder: Path) -> None:
    """Write `folder/checkpoint.pt`, whole or not at all."""
    partial = folder / "checkpoint.partial"
    torch.save(state, partial)
    partial.replace(folder / "checkpoint.pt")

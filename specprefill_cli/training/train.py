"""Training of target and draft side by side: language modelling, guided attention, and distillation into the draft."""

from __future__ import annotations

import json
import math
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import DataLoader

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.machine.placement import bfloat16_gain
from specprefill_cli.training.batches import Batch, BatchStream
from specprefill_cli.training.muon import Muon
from specprefill_cli.training.network import LanguageModel
from specprefill_cli.training.recipe import PairShape, TrainSettings

WEIGHT_DECAY = 0.05
SECONDS_BETWEEN_SAVES = 300.0
MOST_COMPILED = 64
# Settings that may change when a run is resumed.
RESUMABLE = ("minutes", "workers", "compile")
# Every third text token of a batch counts in the draft's loss, because the draft's logits cost more than its layers.
DRAFT_TEXT_EVERY = 3


class Trainer:
    """Holds models, optimisers and the clock of a run; its state is saved in `folder/checkpoint.pt`.

    start: see `train`
    """

    def __init__(self, shape: PairShape, settings: TrainSettings, folder: Path, start: Path | None = None) -> None:
        torch.manual_seed(settings.seed)
        self.settings = settings
        self.folder = folder
        # The faster dtype for matrix products.
        sizes = shape["target"].hidden_size, shape["target"].intermediate_size
        self.dtype = torch.float32 if bfloat16_gain(*sizes) < 1 else torch.bfloat16
        self.pair = {name: LanguageModel(sizes) for name, sizes in shape.items()}
        self.models = nn.ModuleDict(self.pair)
        parameters = dict(self.models.named_parameters())
        matrices = [p for name, p in parameters.items() if p.dim() == 2 and "embed" not in name]
        others = [p for name, p in parameters.items() if p.dim() != 2 or "embed" in name]
        self.optimizers: list[torch.optim.Optimizer] = [
            Muon(matrices, settings.rate, WEIGHT_DECAY, self.dtype),
            torch.optim.AdamW(others, lr=settings.rate, weight_decay=0.0, betas=(0.9, 0.95)),
        ]
        self.seconds = 0.0
        self.steps = 0
        self.tokens = 0
        if start is not None:
            self.start_from(start)
        self.resume()
        if settings.compile:
            # All layers of target and draft share a compiled function, with an entry for every shape and row length.
            torch._dynamo.config.cache_size_limit = MOST_COMPILED
            for model in self.pair.values():
                for layer in model.model.layers:
                    layer.compile(dynamic=False)

    def start_from(self, source: Path) -> None:
        """Load the weights of an exported pair; the optimisers start anew."""
        for name, model in self.pair.items():
            weights = load_file(source / name / "model.safetensors")
            model.load_state_dict({key: value.float() for key, value in weights.items()})

    def resume(self) -> None:
        """Load the run's checkpoint, if any."""
        path = self.folder / "checkpoint.pt"
        if not path.exists():
            return
        state = torch.load(path, weights_only=True)
        self.models.load_state_dict(state["models"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.seconds, self.steps, self.tokens = state["seconds"], state["steps"], state["tokens"]

    def save(self) -> None:
        """Write the checkpoint."""
        optimizers = [optimizer.state_dict() for optimizer in self.optimizers]
        counts = {"seconds": self.seconds, "steps": self.steps, "tokens": self.tokens}
        state = {"models": self.models.state_dict(), "optimizers": optimizers, **counts}
        save_checkpoint(state, self.folder)

    @property
    def progress(self) -> float:
        return min(1.0, self.seconds / (60 * self.settings.minutes))

    def rate_factor(self) -> float:
        """Learning-rate factor: linear warm-up, constant, linear cool-down to a twentieth."""
        rising = (self.steps + 1) / max(1, self.settings.warmup)
        falling = (1 - self.progress) / self.settings.cooldown if self.settings.cooldown else 1.0
        return max(0.05, min(1.0, rising, falling))

    def step(self, batch: Batch) -> dict[str, float]:
        """Update target and draft with a batch; returns the losses by name."""
        with self.autocast():
            losses = {"target": self.losses("target", batch, None)}
            if self.settings.draft_every and self.steps % self.settings.draft_every == 0:
                losses["draft"] = self.losses("draft", batch, losses["target"]["logits"].detach())
        torch.stack([model_losses["total"] for model_losses in losses.values()]).sum().backward()
        for name in losses:
            nn.utils.clip_grad_norm_(self.pair[name].parameters(), 1.0)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.settings.rate * self.rate_factor()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        self.tokens += batch.tokens.numel()
        terms = ("answer", "text", "region", "pointer")
        return {f"{name}_{term}": model_losses[term].item() for name, model_losses in losses.items() for term in terms}

    def autocast(self) -> AbstractContextManager:
        in_bfloat16 = self.settings.compile and self.dtype == torch.bfloat16
        return torch.autocast("cpu", self.dtype) if in_bfloat16 else nullcontext()

    def losses(self, name: str, batch: Batch, teacher: Tensor | None) -> dict[str, Tensor]:
        """Losses of a model, and its logits [N, V]. With a teacher's logits the total includes the distillation loss."""
        settings = self.settings
        model = self.pair[name]
        states, region, pointer = model(batch.tokens, batch.positions, batch.probes)
        texts = batch.texts if teacher is None else batch.texts[::DRAFT_TEXT_EVERY]
        predicting = torch.cat([batch.answers, texts])
        logits = model.logits(states.flatten(0, 1)[predicting]).float()
        token_losses = F.cross_entropy(logits, batch.tokens.flatten()[predicting + 1], reduction="none")
        answers = batch.answers.numel()
        zero = token_losses.new_zeros(())
        answer = token_losses[:answers].mean() if answers else zero
        text = token_losses[answers:].mean() if token_losses.numel() > answers else zero
        guided = settings.region_weight * region + settings.pointer_weight * pointer
        total = answer + settings.text_weight * text + guided
        if teacher is not None and answers:
            # Cross-entropy against the target's distribution. Its weight grows while the target learns.
            imitation = -(teacher[:answers].softmax(-1) * logits[:answers].log_softmax(-1)).sum(-1).mean()
            total = total + settings.distill_weight * min(1.0, 4 * self.progress) * imitation
        return {"total": total, "answer": answer, "text": text, "region": region, "pointer": pointer, "logits": logits}


def train(
    shape: PairShape,
    settings: TrainSettings,
    stream: BatchStream,
    folder: Path,
    start: Path | None = None,
) -> Trainer:
    """Train until the end of the run's clock. Resumes from `folder/checkpoint.pt`, and logs to `folder/train.jsonl`.

    start: initial weights of a new run: the folder of an exported pair

    Raises SpecprefillError for a loss that is not finite, and for a run that began with other settings.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {name: asdict(model) for name, model in shape.items()}
    record_settings(folder, {"shape": sizes, "settings": asdict(settings), "start": start and str(start.resolve())})
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


def record_settings(folder: Path, values: dict[str, Any]) -> None:
    """Write the settings of a run. Raises SpecprefillError where its checkpoint was trained with different settings."""
    path, values = folder / "settings.json", json.loads(json.dumps(values))
    if path.exists() and (folder / "checkpoint.pt").exists():
        stored = json.loads(path.read_text(encoding="utf-8"))
        settings = {name: value for name, value in values["settings"].items() if name not in RESUMABLE}
        changed = [name for name, value in settings.items() if stored["settings"].get(name, value) != value]
        changed += [name for name in ("shape", "start") if stored.get(name, values[name]) != values[name]]
        if changed:
            raise SpecprefillError(
                f"{folder}: this run began with other settings ({', '.join(changed)}); give the same ones, or another folder"
            )
    path.write_text(json.dumps(values, indent=2), encoding="utf-8")


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

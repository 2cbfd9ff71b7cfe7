"""Training of target and draft side by side: language modelling, guided attention, and distillation into the draft."""

from __future__ import annotations

import json
import math
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import DataLoader

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.training.batches import Batch, BatchStream
from specprefill_cli.training.network import LanguageModel
from specprefill_cli.training.shapes import PairShape
from specprefill_cli.training.shards import ShardStream


@dataclass(frozen=True)
class TrainSettings:
    """`minutes` is the length of the whole run, resumed parts included; the schedule follows the clock.

    The clock runs from batch to batch: what a start or a resume takes to load and compile is not counted.

    warmup: steps in which the rate rises; cooldown: share of the run, at its end, in which it falls (0: it stays)
    draft_every: the draft, which learns its part sooner, is updated at every n-th step only; 0 leaves it as it is
    draft_text_every: of the batch's text tokens every n-th counts in the draft's loss; its logits cost more than its layers
    curriculum_from: progress at which the curriculum of rows begins; later for weights that have learnt to copy
    """

    minutes: float
    tokens_per_batch: int = 8_192
    matrix_rate: float = 4e-3
    vector_rate: float = 4e-3
    weight_decay: float = 0.05
    warmup: int = 30
    cooldown: float = 0.35
    text_weight: float = 0.4
    region_weight: float = 0.1
    pointer_weight: float = 1.0
    distill_weight: float = 0.5
    draft_every: int = 3
    draft_text_every: int = 3
    curriculum_from: float = 0.0
    workers: int = 1
    seed: int = 1
    device: str = "cpu"
    compile: bool = True
    save_every: float = 300.0


class Trainer:
    """Holds models, optimisers and the clock of one run; state lives in `folder/checkpoint.pt`."""

    def __init__(self, shape: PairShape, settings: TrainSettings, folder: Path, start: Path | None = None) -> None:
        if not hasattr(torch.optim, "Muon"):
            raise SpecprefillError(
                f"training needs torch 2.9 or newer, for its optimiser Muon; this is {torch.__version__}"
            )
        torch.manual_seed(settings.seed)
        self.settings = settings
        self.folder = folder
        self.models = nn.ModuleDict({"target": LanguageModel(shape.target), "draft": LanguageModel(shape.draft)})
        self.models.to(settings.device)
        matrices = [p for name, p in self.models.named_parameters() if p.dim() == 2 and "embed" not in name]
        others = [p for name, p in self.models.named_parameters() if p.dim() != 2 or "embed" in name]
        self.optimizers = [
            torch.optim.Muon(matrices, lr=settings.matrix_rate, weight_decay=settings.weight_decay,
                             adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=settings.vector_rate, weight_decay=0.0, betas=(0.9, 0.95)),
        ]  # fmt: skip
        self.seconds = 0.0
        self.steps = 0
        self.tokens = 0
        if start is not None:
            self.start_from(start)
        self.resume()
        if settings.compile:
            for model in self.models.values():
                for block in model.model.layers:
                    block.compile(dynamic=False)

    def start_from(self, source: Path) -> None:
        """Take the weights of another run's checkpoint, or of an exported pair; the optimisers begin afresh."""
        if source.is_file():
            state = torch.load(source, map_location=self.settings.device, weights_only=True)
            self.models.load_state_dict(state["models"])
            return
        for name, model in self.models.items():
            weights = load_file(source / name / "model.safetensors", device=self.settings.device)
            model.load_state_dict({key: value.float() for key, value in weights.items()})

    def resume(self) -> None:
        path = self.folder / "checkpoint.pt"
        if not path.exists():
            return
        state = torch.load(path, map_location=self.settings.device, weights_only=True)
        self.models.load_state_dict(state["models"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.seconds, self.steps, self.tokens = state["seconds"], state["steps"], state["tokens"]

    def save(self) -> None:
        state = {
            "models": self.models.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "seconds": self.seconds,
            "steps": self.steps,
            "tokens": self.tokens,
        }
        partial = self.folder / "checkpoint.partial"
        torch.save(state, partial)
        partial.replace(self.folder / "checkpoint.pt")

    @property
    def progress(self) -> float:
        return min(1.0, self.seconds / (60 * self.settings.minutes))

    def rate(self) -> float:
        """Learning-rate factor: linear warm-up, constant, linear cool-down to a twentieth."""
        rising = (self.steps + 1) / max(1, self.settings.warmup)
        falling = (1 - self.progress) / self.settings.cooldown if self.settings.cooldown else 1.0
        return max(0.05, min(1.0, rising, falling))

    def step(self, batch: Batch) -> dict[str, float]:
        """One update of both models; returns the losses by name."""
        settings = self.settings
        batch = batch.to(settings.device)
        with self.autocast():
            found = {"target": self.losses("target", batch, None)}
            if settings.draft_every and self.steps % settings.draft_every == 0:
                found["draft"] = self.losses("draft", batch, found["target"]["logits"].detach())
        sum(losses["total"] for losses in found.values()).backward()
        for name in found:
            nn.utils.clip_grad_norm_(self.models[name].parameters(), 1.0)
        for optimizer, base in zip(self.optimizers, (settings.matrix_rate, settings.vector_rate), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = base * self.rate()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        self.tokens += batch.tokens.numel()
        named = {f"{name}_{key}": losses[key] for name, losses in found.items()
                 for key in ("answer", "text", "region", "pointer")}  # fmt: skip
        return {key: value.item() for key, value in named.items()}

    def autocast(self):
        device = torch.device(self.settings.device).type
        return torch.autocast(device, dtype=torch.bfloat16) if self.settings.compile else nullcontext()

    def losses(self, name: str, batch: Batch, teacher: Tensor | None) -> dict[str, Tensor]:
        """Losses of one model; with a teacher's logits [N, V], their KL divergence is added to the total."""
        settings = self.settings
        model = self.models[name]
        states, region, pointer = model(batch.tokens, batch.positions, batch.probes)
        texts = batch.texts if teacher is None else batch.texts[:: settings.draft_text_every]
        chosen = torch.cat([batch.answers, texts])
        logits = model.logits(states.flatten(0, 1)[chosen]).float()
        each = F.cross_entropy(logits, batch.tokens.flatten()[chosen + 1], reduction="none")
        size = batch.answers.numel()
        answer = each[:size].mean() if size else each.new_zeros(())
        text = each[size:].mean() if each.numel() > size else each.new_zeros(())
        total = (
            answer + settings.text_weight * text + settings.region_weight * region + settings.pointer_weight * pointer
        )
        if teacher is not None and size:
            # Cross-entropy against the target's answer distribution; weighted in once it is worth imitating.
            imitation = -(teacher[:size].softmax(-1) * logits[:size].log_softmax(-1)).sum(-1).mean()
            total = total + settings.distill_weight * min(1.0, 4 * self.progress) * imitation
        return {"total": total, "answer": answer, "text": text, "region": region, "pointer": pointer, "logits": logits}


def train(
    shape: PairShape,
    settings: TrainSettings,
    stream: BatchStream | ShardStream,
    folder: Path,
    start: Path | None = None,
) -> Trainer:
    """Train until the clock of the run is full; resumes from `folder/checkpoint.pt`, logs to `folder/train.jsonl`.

    start: another run's checkpoint, or the folder of an exported pair, whose weights a new run begins with

    Raises SpecprefillError for a torch without Muon, and for a loss that is not finite.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "settings.json").write_text(json.dumps({"shape": asdict(shape), "settings": asdict(settings)}, indent=2))
    trainer = Trainer(shape, settings, folder, start)
    # A resumed run goes on with rows that it has not seen.
    stream.seed += trainer.steps
    loader = DataLoader(
        stream, batch_size=None, num_workers=settings.workers, multiprocessing_context="spawn" if settings.workers else None,
        prefetch_factor=4 if settings.workers else None,
    )  # fmt: skip
    averages: dict[str, float] = {}
    saved = trainer.seconds
    clock = None
    stream.progress.value = max(settings.curriculum_from, trainer.progress)
    # A run that is complete has nothing to add.
    for batch in loader if trainer.progress < 1 else ():
        losses = trainer.step(batch)
        now = time.perf_counter()
        trainer.seconds += now - clock if clock is not None else 0.0
        clock = now
        stream.progress.value = max(settings.curriculum_from, trainer.progress)
        if not math.isfinite(sum(losses.values())):
            raise SpecprefillError(
                f"step {trainer.steps}: a loss is not finite: {losses}; go on from the checkpoint at a lower rate"
            )
        averages |= {key: 0.96 * averages.get(key, value) + 0.04 * value for key, value in losses.items()}
        if trainer.steps % 20 == 0:
            log(folder, trainer, averages)
        if trainer.seconds - saved > settings.save_every:
            trainer.save()
            saved = trainer.seconds
        if trainer.progress >= 1:
            break
    trainer.save()
    return trainer


def log(folder: Path, trainer: Trainer, averages: dict[str, float]) -> None:
    row = {
        "step": trainer.steps,
        "minutes": round(trainer.seconds / 60, 2),
        "tokens": trainer.tokens,
        "tokens_per_second": round(trainer.tokens / max(trainer.seconds, 1e-9)),
        **{key: round(value, 3) for key, value in averages.items()},
    }
    with (folder / "train.jsonl").open("a", encoding="utf-8") as out:
        out.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)

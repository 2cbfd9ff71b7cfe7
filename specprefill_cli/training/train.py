"""Training of the bundled draft: language modelling, guided attention, and distillation of the bundled target."""

import random
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save
from torch import Tensor
from transformers import LlamaModel

from specprefill_cli.files import BUNDLED_FOLDER
from specprefill_cli.models.machine.quantization import cpu_has_bfloat16
from specprefill_cli.training.batches import Batch, make_batch
from specprefill_cli.training.network import LanguageModel, ModelShape, new_model
from specprefill_cli.training.rows import RowMaker
from specprefill_cli.training.updates import Schedule, run_updates

WEIGHT_DECAY = 0.05
WEIGHTS = {"answer": 1.0, "text": 0.4, "region": 0.1, "pointer": 1.0, "imitation": 0.5}
# Progress at which the curriculum begins for an exported draft: it can already copy.
CONTINUED = 0.75
MOST_COMPILED = 64


def train_draft(
    maker: RowMaker,
    shape: ModelShape,
    schedule: Schedule,
    tokens: int,
    folder: Path,
    start: Path | None = None,
    compiled: bool = True,
) -> LanguageModel:
    """Train a draft on batches of so many tokens, and return it; checkpoint and log go to `folder`.

    start: folder of an exported draft to begin with; compiled: compile the layers, and use bfloat16 where that is fast
    """
    torch.manual_seed(schedule.seed)
    model, teacher = new_model(shape), load_teacher()
    if start is not None:
        weights = load_file(start / "model.safetensors")
        model.load_state_dict({key: value.float() for key, value in weights.items()})
    fast = compiled and cpu_has_bfloat16()
    if compiled:
        # All layers share a compiled function, with an entry for every shape and row length.
        torch._dynamo.config.cache_size_limit = MOST_COMPILED
        for layer in (*model.model.layers, *teacher.model.layers):
            layer.compile(dynamic=False)

    def losses(rng: random.Random, progress: float) -> Iterator[Tensor]:
        maker.rng.setstate(rng.getstate())
        batch = make_batch(maker, max(progress, CONTINUED if start else 0.0), tokens)
        with torch.autocast("cpu", torch.bfloat16) if fast else nullcontext():
            parts = batch_losses(model, teacher, batch)
        # The target's answers count more and more.
        weights = WEIGHTS | {"imitation": WEIGHTS["imitation"] * min(1.0, 4 * progress)}
        yield torch.stack([weight * parts[name] for name, weight in weights.items()]).sum()

    parameters = dict(model.named_parameters())
    matrices = [part for name, part in parameters.items() if part.dim() == 2 and "embed" not in name]
    others = [part for name, part in parameters.items() if part.dim() != 2 or "embed" in name]
    optimizers = [
        # Updates have the size of AdamW's.
        torch.optim.Muon(matrices, weight_decay=WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, weight_decay=0.0, betas=(0.9, 0.95)),
    ]
    run_updates(parameters, optimizers, schedule, folder, losses)
    return model


def load_teacher() -> LanguageModel:
    """The bundled target."""
    teacher = LlamaModel.from_pretrained(BUNDLED_FOLDER / "target", dtype=torch.float32)
    return LanguageModel(teacher).requires_grad_(False)


def batch_losses(model: LanguageModel, teacher: LanguageModel, batch: Batch) -> dict[str, Tensor]:
    """The losses of a batch by their names in `WEIGHTS`."""
    states, region, pointer = model(batch.tokens, batch.positions, batch.probes)
    predicting = torch.cat([batch.answers, batch.texts])
    logits = model.logits(states.flatten(0, 1)[predicting]).float()
    token_losses = F.cross_entropy(logits, batch.tokens.flatten()[predicting + 1], reduction="none")
    answers = batch.answers.numel()
    zero = token_losses.new_zeros(())
    imitation = zero
    if answers:
        known = teacher(batch.tokens, batch.positions, None)[0].flatten(0, 1)[batch.answers]
        distribution = teacher.logits(known).float().softmax(-1)
        imitation = -(distribution * logits[:answers].log_softmax(-1)).sum(-1).mean()
    return {
        "answer": token_losses[:answers].mean() if answers else zero,
        "text": token_losses[answers:].mean() if token_losses.numel() > answers else zero,
        "region": region,
        "pointer": pointer,
        "imitation": imitation,
    }


def export_draft(
    checkpoint: Path, shape: ModelShape, out: Path, average: Path | None = None, weight: float = 0.5
) -> None:
    """Write the folder `out`, which transformers loads.

    average: folder of the exported draft that the run started from, to write the mean of the two drafts' weights
        (model soup, arXiv 2203.05482); weight: of the run's draft in the mean
    """
    out.mkdir(parents=True, exist_ok=True)
    weights = torch.load(checkpoint, map_location="cpu", weights_only=True)["parameters"]
    if average is not None:
        first_weights = load_file(average / "model.safetensors")
        weights = {key: torch.lerp(first_weights[key].float(), value, weight) for key, value in weights.items()}
    weights = {key: value.to(torch.float16).contiguous() for key, value in weights.items()}
    # `save_file` would create a file that other users cannot read.
    (out / "model.safetensors").write_bytes(save(weights, metadata={"format": "pt"}))
    new_model(shape).model.config.save_pretrained(out)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(BUNDLED_FOLDER / "target" / file, out / file)

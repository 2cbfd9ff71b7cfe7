"""The adapter of `smollm2`: SmolLM2 with frozen weights and low-rank adapters (LoRA, arXiv 2106.09685), and its training."""

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from specprefill_cli.models.machine.quantization import cpu_has_bfloat16
from specprefill_cli.training.smollm2.rows import ChatRow
from specprefill_cli.training.smollm2.source import ChatRowSource, rows_to_measure
from specprefill_cli.training.synthesis import NOT_FOUND
from specprefill_cli.training.updates import Schedule, run_updates

RANK, ALPHA = 16, 32
SCALE = ALPHA / RANK
PREFIX = "base_model.model."


class AdaptedLinear(nn.Module):
    """A frozen linear layer with an adapter, computed with the merged weights W + scale B A.

    They are rounded to bfloat16, as they will be shipped, so that training sees the weights that users run.
    """

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.weight
        # A is drawn as PEFT draws it.
        self.lora_A = nn.Linear(base.in_features, RANK, bias=False)
        self.lora_B = nn.Linear(RANK, base.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)
        self.merge()

    @torch.no_grad()
    def merge(self) -> None:
        """Merge the adapter as it is now."""
        merged = self.base.float() + SCALE * self.lora_B.weight @ self.lora_A.weight
        self.merged = merged.bfloat16().to(self.base.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]: the value of the merged weights, with the gradients of a separate adapter."""
        lowered = F.linear(x.detach(), self.lora_A.weight.to(x.dtype))
        adapted = F.linear(lowered, SCALE * self.lora_B.weight.to(x.dtype))
        return F.linear(x, self.merged) + (adapted - adapted.detach())


class AdaptedModel:
    """A Llama checkpoint with an adapter on each linear layer of its blocks.

    Weights are rounded to bfloat16, and computed with in float32 on a processor without bfloat16.
    adapters: the trainable matrices, float32, by their names in PEFT's format without its prefix
    """

    def __init__(self, folder: Path) -> None:
        # On a CPU, for rows this short, the fused attention kernel's backward pass costs three times as much.
        llama: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager")
        self.llama = llama.to(torch.bfloat16 if cpu_has_bfloat16() else torch.float32).requires_grad_(False)
        for name, module in list(self.llama.model.named_modules()):
            if isinstance(module, nn.Linear):
                self.llama.model.set_submodule(name, AdaptedLinear(module))
        self.adapters = {name: part for name, part in self.llama.named_parameters() if part.requires_grad}

    def merge(self) -> None:
        """Merge all adapters; call it after each change of `adapters`."""
        for module in self.llama.modules():
            if isinstance(module, AdaptedLinear):
                module.merge()

    def load(self, folder: Path) -> None:
        """Begin with an adapter in PEFT's format, of the same rank."""
        saved = load_file(folder / "adapter_model.safetensors")
        for name, adapter in self.adapters.items():
            adapter.data.copy_(saved[PREFIX + name])
        self.merge()

    def save(self, folder: Path, base: str) -> None:
        """Write the adapter in PEFT's format, in bfloat16; base: name of the model that it belongs to."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {PREFIX + name: adapter.detach().bfloat16() for name, adapter in self.adapters.items()}
        save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
        config = {
            "base_model_name_or_path": base,
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "r": RANK,
            "lora_alpha": ALPHA,
            "lora_dropout": 0.0,
            "bias": "none",
            "inference_mode": True,
            "fan_in_fan_out": False,
            "target_modules": sorted({name.split(".")[-3] for name in self.adapters}),
        }
        (folder / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")

    def losses(self, row: ChatRow) -> tuple[Tensor, Tensor]:
        """The loss of each answer token, and whether greedy decoding would choose it: [answers] each."""
        logits = self.logits(row)
        return F.cross_entropy(logits, row.targets, reduction="none"), logits.argmax(-1) == row.targets

    def logits(self, row: ChatRow) -> Tensor:
        """Logits [answers, vocabulary] in float32 of the tokens that predict an answer's token."""
        mask = torch.zeros(row.mask().shape, dtype=self.llama.dtype).masked_fill_(~row.mask(), float("-inf"))
        states = self.llama.model(
            row.tokens[None], attention_mask=mask[None, None], position_ids=row.positions[None], use_cache=False
        ).last_hidden_state
        return self.llama.lm_head(states[0, row.answers]).float()


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
    losses: list[Tensor] = []
    outcomes: dict[bool, list[bool]] = {True: [], False: []}
    for row in rows:
        loss, correct = model.losses(row)
        losses.append(loss)
        numbers = row.segments[row.answers]
        for number in numbers.unique():
            answer = numbers == number
            outcomes[row.targets[answer].tolist() == list(not_found)].append(bool(correct[answer].all()))
    exact, refused = (round(100 * sum(right) / max(1, len(right)), 1) for right in (outcomes[False], outcomes[True]))
    return {"held_out_loss": round(float(torch.cat(losses).mean()), 4), "exact": exact, "not_found": refused}

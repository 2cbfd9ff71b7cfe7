"""A Llama model with frozen weights and trainable adapters, for rows in which several questions share a document.

The low-rank adapters (LoRA, arXiv 2106.09685) are computed with merged weights: the forward pass multiplies with
W + scale * B A, rounded to bfloat16 as it will be shipped. So training sees the weights that users run, and needs no second
product. The backward pass gives the gradients of A and B as if they were separate.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from specprefill_cli.models.machine.quantization import cpu_has_bfloat16
from specprefill_cli.training.smollm2.rows import ChatRow

# Linear layers of a block that share their input, in the order in which their weights are stacked.
GROUPS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
PREFIX = "base_model.model."


@dataclass(frozen=True, kw_only=True)
class Rank:
    """Shape of the adapters: `rank` of B A, which is scaled by alpha / rank."""

    rank: int = 16
    alpha: int = 32

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


class AdaptedModel:
    """A Llama checkpoint with an adapter on each linear layer of its blocks.

    Weights are rounded to bfloat16, as they are shipped, and computed with in float32 on a processor without bfloat16.
    parameters: [P] float32, all adapters concatenated, so that processes can share them as a single tensor
    """

    def __init__(self, folder: Path, rank: Rank) -> None:
        self.config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.dtype = torch.bfloat16 if cpu_has_bfloat16() else torch.float32
        self.weights = {name: weight.to(self.dtype) for name, weight in load_file(folder / "model.safetensors").items()}
        self.rank = rank
        self.layers = range(self.config["num_hidden_layers"])
        self.heads, self.key_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        self.head_size = self.config["head_dim"]
        self.stacked = {
            (layer, group): torch.cat([self.weights[f"model.layers.{layer}.{name}.weight"] for name in names])
            for layer in self.layers
            for group, names in GROUPS.items()
        }
        shapes = self.adapter_shapes()
        edges = [0, *accumulate(rows * columns for rows, columns in shapes.values())]
        self.places = {
            name: (slice(*edge), shape) for (name, shape), edge in zip(shapes.items(), pairwise(edges), strict=True)
        }
        self.parameters = torch.zeros(edges[-1])
        self.gradient = torch.zeros(edges[-1])
        self.merged: dict[tuple[int, str], Tensor] = {}
        self.leaves: dict[tuple[int, str], list[Tensor]] = {}

    def adapter_shapes(self) -> dict[str, tuple[int, int]]:
        """Names and shapes of the adapters' matrices, those of layers with a common input side by side."""
        shapes = {}
        for layer in self.layers:
            for names in GROUPS.values():
                for matrix in "AB":
                    for name in names:
                        full = f"model.layers.{layer}.{name}"
                        out, size = self.weights[f"{full}.weight"].shape
                        shape = (self.rank.rank, size) if matrix == "A" else (out, self.rank.rank)
                        shapes[f"{full}.lora_{matrix}.weight"] = shape
        return shapes

    def view(self, flat: Tensor, name: str) -> Tensor:
        """The matrix of an adapter in a flat tensor [P]."""
        place, shape = self.places[name]
        return flat[place].view(shape)

    def load(self, folder: Path) -> None:
        """Begin with an adapter in PEFT's format, of the same rank."""
        saved = load_file(folder / "adapter_model.safetensors")
        for name in self.places:
            self.view(self.parameters, name).copy_(saved[PREFIX + name])

    def save(self, folder: Path, base: str) -> None:
        """Write the adapter in PEFT's format, in bfloat16; base: name of the model that it belongs to."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {PREFIX + name: self.view(self.parameters, name).bfloat16().contiguous() for name in self.places}
        save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
        config = {
            "base_model_name_or_path": base,
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "r": self.rank.rank,
            "lora_alpha": self.rank.alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "inference_mode": True,
            "fan_in_fan_out": False,
            "target_modules": [name.rpartition(".")[2] for names in GROUPS.values() for name in names],
        }
        (folder / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")

    def reset(self, seed: int) -> None:
        """A fresh adapter: A drawn as PEFT draws it, B zero."""
        generator = torch.Generator().manual_seed(seed)
        for name in self.places:
            matrix = self.view(self.parameters, name)
            bound = matrix.shape[1] ** -0.5 if "lora_A" in name else 0.0
            matrix.copy_((torch.rand(matrix.shape, generator=generator) * 2 - 1) * bound)

    def update(self) -> None:
        """Merge the adapters as they are now; call it after each change of `parameters`."""
        for (layer, group), base in self.stacked.items():
            down, ups = self.adapters(self.parameters, layer, group)
            self.merged[layer, group] = merge(base, down, ups, self.rank.scale).to(self.dtype)
            self.leaves[layer, group] = [part.to(self.dtype, copy=True).requires_grad_() for part in (down, *ups)]

    def adapters(self, flat: Tensor, layer: int, group: str) -> tuple[Tensor, list[Tensor]]:
        """The A matrices, stacked, and the B matrices of layers with a common input, as views of a flat tensor [P]."""
        names = [f"model.layers.{layer}.{name}" for name in GROUPS[group]]
        first, last = (self.places[f"{name}.lora_A.weight"][0] for name in (names[0], names[-1]))
        size = self.places[f"{names[0]}.lora_A.weight"][1][1]
        down = flat[first.start : last.stop].view(-1, size)
        return down, [self.view(flat, f"{name}.lora_B.weight") for name in names]

    def accumulate(self, row: ChatRow) -> Tensor:
        """Add a row's gradient to `gradient`; returns counts [4]: rows, tokens, weighted loss, sum of weights."""
        losses = F.cross_entropy(self.logits(row), row.targets, reduction="none")
        loss = (losses * row.weights).sum()
        # The leaves are copies: the gradient of a view would be as large as the whole tensor.
        loss.backward()
        for (layer, group), leaves in self.leaves.items():
            down, ups = self.adapters(self.gradient, layer, group)
            for total, leaf in zip((down, *ups), leaves, strict=True):
                if leaf.grad is not None:
                    total += leaf.grad
                leaf.grad = None
        return torch.tensor([1.0, len(row.tokens), float(loss.detach()), float(row.weights.sum())], dtype=torch.double)

    @torch.no_grad()
    def hits(self, row: ChatRow) -> tuple[Tensor, Tensor]:
        """Loss of each answer token, and whether greedy decoding would choose it: [answers] each."""
        logits = self.logits(row)
        return F.cross_entropy(logits, row.targets, reduction="none"), logits.argmax(-1) == row.targets

    def logits(self, row: ChatRow) -> Tensor:
        """Logits [answers, vocabulary] in float32 of the tokens that predict an answer's token."""
        embedding = self.weights["model.embed_tokens.weight"]
        x = embedding[row.tokens]
        cosine, sine = self.rotation(row.positions)
        mask = torch.zeros(len(x), len(x), dtype=x.dtype).masked_fill_(~row.mask(), float("-inf"))
        for layer in self.layers:
            x = x + self.attend(self.norm(x, layer, "input_layernorm"), layer, cosine, sine, mask)
            wide = self.linear(self.norm(x, layer, "post_attention_layernorm"), layer, "gate_up")
            gate, up = wide.chunk(2, dim=1)
            x = x + self.linear(F.silu(gate) * up, layer, "down")
        last = rms_norm(x[row.answers], self.weights["model.norm.weight"], self.config["rms_norm_eps"])
        return (last @ embedding.T).float()

    def norm(self, x: Tensor, layer: int, name: str) -> Tensor:
        """A block's norm of hidden states [S, hidden]."""
        return rms_norm(x, self.weights[f"model.layers.{layer}.{name}.weight"], self.config["rms_norm_eps"])

    def linear(self, x: Tensor, layer: int, group: str) -> Tensor:
        """Adapted linear layers with a common input: [S, in] -> [S, out]."""
        down, *ups = self.leaves[layer, group]
        return MergedLinear.apply(x, self.merged[layer, group], down, self.rank.scale, *ups)

    def attend(self, x: Tensor, layer: int, cosine: Tensor, sine: Tensor, mask: Tensor) -> Tensor:
        """Self-attention: [S, hidden] -> [S, hidden]; cosine, sine: [S, head size]; mask: [S, S], added."""
        stacked = self.linear(x, layer, "qkv").view(len(x), -1, self.head_size).transpose(0, 1)
        query, key, value = stacked.split([self.heads, self.key_heads, self.key_heads])
        query, key = rotate(query, cosine, sine) * self.head_size**-0.5, rotate(key, cosine, sine)
        # On a CPU, for rows this short, faster than the fused kernel, whose backward pass costs three times as much.
        scores = query.reshape(self.key_heads, -1, self.head_size) @ key.transpose(1, 2)
        weights = (scores.view(self.heads, len(x), -1) + mask).softmax(-1).view(self.key_heads, -1, len(x))
        mixed = (weights @ value).view(self.heads, len(x), self.head_size)
        return self.linear(mixed.transpose(0, 1).reshape(len(x), -1), layer, "o")

    def rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine [S, head size] of rotary embedding, computed in float32."""
        base = self.config["rope_parameters"]["rope_theta"]
        frequencies = base ** (-torch.arange(0, self.head_size, 2, dtype=torch.float32) / self.head_size)
        angles = (positions[:, None].float() * frequencies).repeat(1, 2)
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """RMSNorm over the last dimension, computed in float32."""
    wide = x.float()
    return weight * (wide * (wide.square().mean(-1, keepdim=True) + epsilon).rsqrt()).to(x.dtype)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary embedding of heads [n, S, size], whose halves are pairs."""
    low, high = x.chunk(2, dim=-1)
    return x * cosine + torch.cat([-high, low], dim=-1) * sine


class MergedLinear(torch.autograd.Function):
    """y = x W'^T for several stacked linear layers with a common input, each with an adapter of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, merged: Tensor, down: Tensor, scale: float, *ups: Tensor) -> Tensor:
        """Multiply.

        x: [T, in]; merged: [out, in], the stacked layers' merged weights; down: [n * rank, in], their A matrices, stacked
        ups: [out of the layer, rank], their B matrices
        """
        ctx.save_for_backward(x, merged, down, *ups)
        ctx.scale = scale
        return x @ merged.T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of x, down and ups; the base weights are frozen."""
        x, merged, down, *ups = ctx.saved_tensors
        (grad,) = grads
        rank = ups[0].shape[1]
        layer_grads = grad.split([len(up) for up in ups], dim=1)
        lowered = (x @ down.T).split(rank, dim=1)
        up_grads = [ctx.scale * (part.T @ low) for part, low in zip(layer_grads, lowered, strict=True)]
        raised = torch.cat([part @ up for part, up in zip(layer_grads, ups, strict=True)], dim=1)
        down_grad = ctx.scale * (raised.T @ x)
        x_grad = grad @ merged if ctx.needs_input_grad[0] else None
        return x_grad, None, down_grad, None, *up_grads


def merge(base: Tensor, down: Tensor, ups: Sequence[Tensor], scale: float) -> Tensor:
    """W + scale * B A of stacked layers, in bfloat16.

    base: [out, in]; down: [n * rank, in]; ups: [out of the layer, rank] each
    """
    rank = ups[0].shape[1]
    parts = zip(down.split(rank), ups, strict=True)
    return (base.float() + scale * torch.cat([up @ low for low, up in parts])).bfloat16()

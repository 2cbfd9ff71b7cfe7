"""A compact Llama decoder for training; its parameter names are those of transformers' `LlamaForCausalLM`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specprefill_cli.training.shapes import ModelShape


@dataclass
class ProbeTargets:
    """Where two attention heads should look, for the guided-attention losses.

    region_queries: [B, Q, T] indices of the last T tokens of every question (-1: none)
    region_bounds:  [B, Q, 2] token range [start, end) of the passage that answers it
    pointer_queries: [B, P] indices of the tokens that predict an answer token (-1: none)
    pointer_targets: [B, P] index of the document token to copy
    """

    region_queries: Tensor
    region_bounds: Tensor
    pointer_queries: Tensor
    pointer_targets: Tensor

    def to(self, device: torch.device | str) -> ProbeTargets:
        return ProbeTargets(*(tensor.to(device, non_blocking=True) for tensor in vars(self).values()))


def rotary(positions: Tensor, shape: ModelShape) -> tuple[Tensor, Tensor]:
    """Cos and sin [B, 1, S, head_size] of the rotary embedding (arXiv 2104.09864) at positions [B, S]."""
    exponents = torch.arange(0, shape.head_size, 2, device=positions.device, dtype=torch.float32) / shape.head_size
    angles = positions[..., None].float() * shape.rope_theta**-exponents
    angles = torch.cat([angles, angles], dim=-1)[:, None]
    return angles.cos(), angles.sin()


def rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = states.chunk(2, dim=-1)
    return (states * cos + torch.cat([-second, first], dim=-1) * sin).to(states.dtype)


class RMSNorm(nn.Module):
    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, states: Tensor) -> Tensor:
        wide = states.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)).to(states.dtype) * self.weight


class Attention(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.hidden_size, shape.heads * shape.head_size, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, shape.key_value_heads * shape.head_size, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, shape.key_value_heads * shape.head_size, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_size, shape.hidden_size, bias=False)

    def forward(self, states: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Attention output [B, S, H] and the rotated queries and keys [B, heads, S, head_size]."""
        batch, length, _ = states.shape
        split = (batch, length, -1, self.shape.head_size)
        queries = rotate(self.q_proj(states).view(split).transpose(1, 2), cos, sin)
        keys = rotate(self.k_proj(states).view(split).transpose(1, 2), cos, sin)
        values = self.v_proj(states).view(split).transpose(1, 2)
        groups = self.shape.heads // self.shape.key_value_heads
        attend = blocked_attention if states.device.type == "cpu" else causal_attention
        mixed = attend(queries, keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1))
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1)), queries, keys


def causal_attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(queries, keys, values, is_causal=True)


def blocked_attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Causal attention [B, heads, S, head_size] in blocks of queries, each against the keys up to its end.

    Compiled, forward and backward together take half the time of the fused CPU kernel in bfloat16 (measured at
    lengths of 256 to 4,096), because they run as matrix products.
    """
    length = queries.shape[2]
    size = max(min(256, length), length // 8)
    queries = queries / math.sqrt(queries.shape[-1])
    later = torch.ones(size, size, dtype=torch.bool, device=queries.device).triu(1)
    bias = torch.zeros(size, size, dtype=queries.dtype, device=queries.device).masked_fill(later, -3e4)
    outputs = []
    for start in range(0, length, size):
        end = min(start + size, length)
        scores = queries[:, :, start:end] @ keys[:, :, :end].transpose(2, 3)
        own = scores[..., start:] + bias[: end - start, : end - start]
        scores = torch.cat([scores[..., :start], own], dim=-1) if start else own
        outputs.append(scores.softmax(-1).to(values.dtype) @ values[:, :, :end])
    return torch.cat(outputs, dim=2)


class FeedForward(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(states)) * self.up_proj(states))


class Block(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.norm_epsilon)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.norm_epsilon)
        self.mlp = FeedForward(shape)

    def forward(self, states: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mixed, queries, keys = self.self_attn(self.input_layernorm(states), cos, sin)
        states = states + mixed
        return states + self.mlp(self.post_attention_layernorm(states)), queries, keys


class Decoder(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden_size)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden_size, shape.norm_epsilon)


class LanguageModel(nn.Module):
    """Decoder with tied embeddings."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Decoder(shape)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                deep = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * shape.layers) if deep else 0.02)

    def forward(self, tokens: Tensor, positions: Tensor, probes: ProbeTargets | None) -> tuple[Tensor, Tensor, Tensor]:
        """Final hidden states [B, S, H], region loss and pointer loss (scalars; 0 without probes)."""
        cos, sin = rotary(positions, self.shape)
        states = self.model.embed_tokens(tokens)
        region = pointer = states.new_zeros((), dtype=torch.float32)
        for number, block in enumerate(self.model.layers):
            states, queries, keys = block(states, cos, sin)
            if probes is None:
                continue
            if number in self.shape.region_layers:
                region = region + region_loss(queries[:, 0], keys[:, 0], probes) / len(self.shape.region_layers)
            if number in self.shape.pointer_layers:
                # The last head, so that one layer can hold both guided heads.
                pointer = pointer + pointer_loss(queries[:, -1], keys[:, -1], probes) / len(self.shape.pointer_layers)
        return self.model.norm(states), region, pointer

    def logits(self, states: Tensor) -> Tensor:
        return F.linear(states, self.model.embed_tokens.weight)


def causal_scores(queries: Tensor, keys: Tensor, index: Tensor) -> Tensor:
    """Scaled attention scores [B, N, S] in float32 of the queries at `index` [B, N], later keys masked."""
    safe = index.clamp(min=0)
    picked = torch.gather(queries, 1, safe[..., None].expand(-1, -1, queries.shape[-1]))
    scores = (picked @ keys.transpose(1, 2)).float() / math.sqrt(queries.shape[-1])
    later = torch.arange(keys.shape[1], device=keys.device) > safe[..., None]
    return scores.masked_fill(later, float("-inf"))


def region_loss(queries: Tensor, keys: Tensor, probes: ProbeTargets) -> Tensor:
    """-log of the attention mass that a question's tokens, on average, put on the passage that answers it.

    queries, keys: [B, S, head_size] of one head.
    """
    batch, questions, width = probes.region_queries.shape
    scores = causal_scores(queries, keys, probes.region_queries.reshape(batch, -1)).view(batch, questions, width, -1)
    places = torch.arange(keys.shape[1], device=keys.device)
    inside = (places >= probes.region_bounds[..., :1]) & (places < probes.region_bounds[..., 1:])
    # Masked with a large finite number: a question without a passage would otherwise give inf - inf.
    within = scores.masked_fill(~inside[:, :, None], -1e4).logsumexp(-1)
    mass = within - scores.logsumexp(-1)
    valid = probes.region_queries >= 0
    count = valid.sum(-1)
    mean = mass.masked_fill(~valid, -1e4).logsumexp(-1) - count.clamp(min=1).float().log()
    used = (count > 0) & (probes.region_bounds[..., 1] > probes.region_bounds[..., 0])
    return -(mean * used).sum() / used.sum().clamp(min=1)


def pointer_loss(queries: Tensor, keys: Tensor, probes: ProbeTargets) -> Tensor:
    """-log attention from the token that predicts an answer token to the document token that it copies."""
    scores = causal_scores(queries, keys, probes.pointer_queries)
    log_share = scores.log_softmax(-1).gather(-1, probes.pointer_targets.clamp(min=0)[..., None])[..., 0]
    used = (probes.pointer_queries >= 0) & (probes.pointer_targets >= 0)
    return -(log_share * used).sum() / used.sum().clamp(min=1)

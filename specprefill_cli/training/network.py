"""A compact Llama decoder for training; its parameter names are those of transformers' `LlamaForCausalLM`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specprefill_cli.training.recipe import ModelShape


@dataclass(kw_only=True)
class ProbeTargets:
    """Targets of the guided attention heads.

    region_queries: [B, Q, T] indices of the last T tokens of every question (-1: none)
    region_bounds:  [B, Q, 2] token range [start, end) of the passage that answers it
    pointer_queries: [B, P] indices of the tokens that predict an answer token (-1: none)
    pointer_targets: [B, P] index of the document token to copy
    """

    region_queries: Tensor
    region_bounds: Tensor
    pointer_queries: Tensor
    pointer_targets: Tensor


def rotary(positions: Tensor, shape: ModelShape) -> tuple[Tensor, Tensor]:
    """Cos and sin [B, 1, S, head_size] of the rotary embedding (arXiv 2104.09864) at positions [B, S]."""
    exponents = torch.arange(0, shape.head_size, 2, device=positions.device, dtype=torch.float32) / shape.head_size
    angles = positions[..., None].float() * shape.rope_theta**-exponents
    angles = torch.cat([angles, angles], dim=-1)[:, None]
    return angles.cos(), angles.sin()


def rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = states.chunk(2, dim=-1)
    return (states * cos + torch.cat([-second, first], dim=-1) * sin).to(states.dtype)


class Attention(nn.Module):
    """Grouped-query attention with rotary embedding."""

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
        repeated = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
        if queries.device.type == "cpu" and queries.dtype == torch.bfloat16:
            mixed = blocked_attention(queries, *repeated)
        else:
            mixed = F.scaled_dot_product_attention(queries, *repeated, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1)), queries, keys


def blocked_attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Causal attention [B, heads, S, head_size] in blocks of queries, each against the keys up to its end.

    Compiled, this trains faster in bfloat16 than the fused CPU kernel, because it runs as matrix products.
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
        diagonal = scores[..., start:] + bias[: end - start, : end - start]
        scores = torch.cat([scores[..., :start], diagonal], dim=-1) if start else diagonal
        outputs.append(scores.softmax(-1).to(values.dtype) @ values[:, :, :end])
    return torch.cat(outputs, dim=2)


class FeedForward(nn.Module):
    """The gated SiLU layer."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(states)) * self.up_proj(states))


class DecoderLayer(nn.Module):
    """Attention and feed-forward layer with their norms; returns states, queries and keys as `Attention` does."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden_size, shape.norm_epsilon)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, shape.norm_epsilon)
        self.mlp = FeedForward(shape)

    def forward(self, states: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mixed, queries, keys = self.self_attn(self.input_layernorm(states), cos, sin)
        states = states + mixed
        return states + self.mlp(self.post_attention_layernorm(states)), queries, keys


class Decoder(nn.Module):
    """Embedding, layers and the final norm."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden_size, shape.norm_epsilon)


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
        for number, layer in enumerate(self.model.layers):
            states, queries, keys = layer(states, cos, sin)
            if probes is None:
                continue
            if number in self.shape.region_layers:
                region = region + region_loss(queries[:, 0], keys[:, 0], probes) / len(self.shape.region_layers)
            if number in self.shape.pointer_layers:
                # The last head, so that a layer can also hold a region head.
                pointer = pointer + pointer_loss(queries[:, -1], keys[:, -1], probes) / len(self.shape.pointer_layers)
        return self.model.norm(states), region, pointer

    def logits(self, states: Tensor) -> Tensor:
        return F.linear(states, self.model.embed_tokens.weight)


def causal_scores(queries: Tensor, keys: Tensor, index: Tensor) -> Tensor:
    """Scaled attention scores [B, N, S] in float32 of the queries at `index` [B, N]; later keys are masked."""
    index = index.clamp(min=0)
    chosen = torch.gather(queries, 1, index[..., None].expand(-1, -1, queries.shape[-1]))
    scores = (chosen @ keys.transpose(1, 2)).float() / math.sqrt(queries.shape[-1])
    later = torch.arange(keys.shape[1], device=keys.device) > index[..., None]
    return scores.masked_fill(later, float("-inf"))


def region_loss(queries: Tensor, keys: Tensor, probes: ProbeTargets) -> Tensor:
    """-log of the mean attention mass that a question's tokens put on the passage that answers it.

    queries, keys: [B, S, head_size] of the guided head
    """
    batch, questions, width = probes.region_queries.shape
    scores = causal_scores(queries, keys, probes.region_queries.reshape(batch, -1)).view(batch, questions, width, -1)
    index = torch.arange(keys.shape[1], device=keys.device)
    inside = (index >= probes.region_bounds[..., :1]) & (index < probes.region_bounds[..., 1:])
    # A large finite mask, because a question without a passage would give inf - inf.
    within = scores.masked_fill(~inside[:, :, None], -1e4).logsumexp(-1)
    mass = within - scores.logsumexp(-1)
    valid = probes.region_queries >= 0
    count = valid.sum(-1)
    mean = mass.masked_fill(~valid, -1e4).logsumexp(-1) - count.clamp(min=1).float().log()
    used = (count > 0) & (probes.region_bounds[..., 1] > probes.region_bounds[..., 0])
    return -(mean * used).sum() / used.sum().clamp(min=1)


def pointer_loss(queries: Tensor, keys: Tensor, probes: ProbeTargets) -> Tensor:
    """-log of the attention from the token that predicts an answer token to the document token to copy."""
    scores = causal_scores(queries, keys, probes.pointer_queries)
    log_mass = scores.log_softmax(-1).gather(-1, probes.pointer_targets.clamp(min=0)[..., None])[..., 0]
    used = (probes.pointer_queries >= 0) & (probes.pointer_targets >= 0)
    return -(log_mass * used).sum() / used.sum().clamp(min=1)

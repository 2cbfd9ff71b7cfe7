"""The language model that is trained as the bundled draft, and the losses of their guided attention heads."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from specprefill_cli.files import BUNDLED_FOLDER


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Sizes of a Llama model, and the layers with guided heads (see `ProbeTargets`)."""

    hidden_size: int
    layers: int
    heads: int
    intermediate_size: int
    region_layers: Sequence[int]
    pointer_layers: Sequence[int]
    head_size: int = 64


# The shipped draft, and one for a smoke test.
SHAPES: Mapping[str, ModelShape] = {
    "draft": ModelShape(
        hidden_size=128, layers=3, heads=2, intermediate_size=352, region_layers=[2], pointer_layers=[2]
    ),
    "smoke": ModelShape(
        hidden_size=32, layers=2, heads=1, head_size=32, intermediate_size=64, region_layers=[1], pointer_layers=[1]
    ),
}


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


class LanguageModel(nn.Module):
    """Transformers' Llama with tied embeddings; region_layers, pointer_layers: whose first and last head are guided."""

    def __init__(
        self, model: LlamaModel, region_layers: Sequence[int] = (), pointer_layers: Sequence[int] = ()
    ) -> None:
        super().__init__()
        self.model, self.region_layers, self.pointer_layers = model, region_layers, pointer_layers

    def forward(self, tokens: Tensor, positions: Tensor, probes: ProbeTargets | None) -> tuple[Tensor, Tensor, Tensor]:
        """Final hidden states [B, S, H], region loss and pointer loss (scalars; 0 without probes).

        The layers are called one by one: without a mask, `LlamaModel` would cut attention at every gap of the positions.
        """
        states = self.model.embed_tokens(tokens)
        rotary = self.model.rotary_emb(states, positions)
        region = pointer = states.new_zeros((), dtype=torch.float32)
        for number, layer in enumerate(self.model.layers):
            if probes is not None and number in self.region_layers:
                region = region + region_loss(*self.guided_head(layer, states, rotary, 0), probes)
            if probes is not None and number in self.pointer_layers:
                # The last head, so that a layer can also hold a region head.
                pointer = pointer + pointer_loss(*self.guided_head(layer, states, rotary, -1), probes)
            states = layer(states, attention_mask=None, position_embeddings=rotary)
        return (
            self.model.norm(states),
            region / max(1, len(self.region_layers)),
            pointer / max(1, len(self.pointer_layers)),
        )

    def guided_head(
        self, layer: Any, states: Tensor, rotary: tuple[Tensor, Tensor], head: int
    ) -> tuple[Tensor, Tensor]:
        """Rotated queries and keys [B, S, head_size] of a layer's head, from the layer's input [B, S, H]."""
        normed = layer.input_layernorm(states)
        projections = layer.self_attn.q_proj, layer.self_attn.k_proj
        weights = (part.weight.unflatten(0, (-1, self.model.config.head_dim))[head] for part in projections)
        query, key = apply_rotary_pos_emb(*(F.linear(normed, weight)[:, None] for weight in weights), *rotary)
        return query[:, 0], key[:, 0]

    def logits(self, states: Tensor) -> Tensor:
        return F.linear(states, self.model.embed_tokens.weight)


def new_model(shape: ModelShape) -> LanguageModel:
    """A model with random weights; vocabulary, context and rotary embedding are those of the bundled target."""
    sizes: dict[str, Any] = {
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": max(1, shape.heads // 2),
        "head_dim": shape.head_size,
        "intermediate_size": shape.intermediate_size,
    }
    config = LlamaConfig.from_pretrained(BUNDLED_FOLDER / "target", attn_implementation="sdpa", **sizes)
    model = LanguageModel(LlamaModel(config), shape.region_layers, shape.pointer_layers)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            deep = name.endswith(("o_proj.weight", "down_proj.weight"))
            nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * shape.layers) if deep else 0.02)
    return model


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

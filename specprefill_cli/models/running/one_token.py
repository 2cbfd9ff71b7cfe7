"""The decoding pass of a single token on a CPU, without the Python of transformers' modules."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from specprefill_cli.models.running.cache import device_of
from specprefill_cli.models.running.passes import ForwardInput

# Architectures with the layers that `OneTokenPass` computes, where they have no sliding window.
SUPPORTED_TYPES = ("llama", "mistral", "qwen2", "qwen3")
# The pass of each model that has decoded; None where transformers must compute it.
PREPARED: WeakKeyDictionary[PreTrainedModel, OneTokenPass | None] = WeakKeyDictionary()


class OneTokenPass:
    """Calls the linear layers, and the rotary embedding once; norms, rotation and attention are single torch operations."""

    def __init__(self, model: PreTrainedModel) -> None:
        decoder: Any = model.get_decoder()
        self.embeddings, self.rotary, self.norm = decoder.embed_tokens, decoder.rotary_emb, decoder.norm
        head: Any = model.get_output_embeddings()
        self.head = head.forward
        self.layers = [
            (
                block,
                block.self_attn,
                [getattr(block.self_attn, f"{name}_proj").forward for name in "qkvo"],
                [getattr(block.mlp, f"{name}_proj").forward for name in ("gate", "up", "down")],
            )
            for block in decoder.layers
        ]

    @torch.inference_mode()
    def __call__(self, token: Tensor, position: Tensor, cache: Any, mask: Tensor | None = None) -> Tensor:
        """Run a token [1] at a position [1] after those of the cache; return float32 logits [1, V].

        mask: [1, 1, 1, K] which slots of the cache the token sees (bool); None: all
        """
        hidden = self.embeddings(token)
        cos, sin = (factor[0] for factor in self.rotary(hidden, position[None]))
        half = cos.shape[-1] // 2
        # The rotation subtracts the half that `roll` moves to the front.
        sin = torch.cat([-sin[:, :half], sin[:, half:]], dim=-1)
        for number, (block, attention, (to_query, to_key, to_value, to_output), (gate, up, down)) in enumerate(
            self.layers
        ):
            states = apply_norm(block.input_layernorm, hidden)
            query, key, value = (
                project(states).view(1, -1, 1, attention.head_dim) for project in (to_query, to_key, to_value)
            )
            if hasattr(attention, "q_norm"):
                query, key = apply_norm(attention.q_norm, query), apply_norm(attention.k_norm, key)
            query, key = (torch.addcmul(part * cos, part.roll(half, -1), sin) for part in (query, key))
            keys, values = cache.update(key, value, number)
            output = F.scaled_dot_product_attention(
                query, keys, values, attn_mask=mask, scale=attention.scaling, enable_gqa=True
            )
            hidden = hidden + to_output(output.view(1, -1))
            states = apply_norm(block.post_attention_layernorm, hidden)
            hidden = hidden + down(block.mlp.act_fn(gate(states)) * up(states))
        return self.head(apply_norm(self.norm, hidden)).float()


def apply_norm(norm: Any, states: Tensor) -> Tensor:
    """States under a root-mean-square norm."""
    return F.rms_norm(states, norm.weight.shape, norm.weight, norm.variance_epsilon)


def one_token_pass(step: ForwardInput) -> OneTokenPass | None:
    """The quick pass of decoding, or None where transformers' modules must compute it."""
    decodes = step.length == 1 and step.rows == 1 and step.capture is None and step.last_layer is None
    if not decodes:
        return None
    if step.model not in PREPARED:
        PREPARED[step.model] = OneTokenPass(step.model) if is_supported(step.model) else None
    return PREPARED[step.model]


def is_supported(model: PreTrainedModel) -> bool:
    """Whether `OneTokenPass` computes a model's layers: of a supported type, undivided, and on the CPU."""
    config = model.config
    windowed = getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True)
    on_cpu = all(parameter.device.type == "cpu" for parameter in model.parameters())
    is_undivided = (getattr(model, "_tp_size", None) or 1) == 1 and device_of(
        model.get_input_embeddings()
    ).type == "cpu"
    return config.model_type in SUPPORTED_TYPES and not windowed and on_cpu and is_undivided

"""Keys and values outside a forward pass; like `models/running/adapter.py`, this reads transformers' modules.

Attention modules project the normalised input of their layer to raw keys, which pass a norm, if any, and the
rotary embedding, and to values. Draft KV replaces the projection with a linear map.
"""

import inspect
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specprefill_cli.models.running.cache import device_of


class StateCapture(ExitStack):
    """Inside its block, keeps the inputs of chosen layers' attention: normalised hidden states."""

    def __init__(self, model: PreTrainedModel, layers: Sequence[int]) -> None:
        super().__init__()
        self.pieces: dict[int, list[Tensor]] = {layer: [] for layer in layers}
        for layer, pieces in self.pieces.items():
            module = attention_module(model, layer)
            self.enter_context(module.register_forward_pre_hook(partial(append_input, pieces), with_kwargs=True))

    def states(self, layer: int, count: int) -> Tensor:
        """The first `count` captured inputs of a layer: [count, hidden_size]."""
        return torch.cat(self.pieces[layer])[:count]


def append_input(pieces: list[Tensor], _module: nn.Module, arguments: tuple, keywords: dict) -> None:
    """A hook that appends a module's input states to `pieces`."""
    pieces.append((keywords["hidden_states"] if "hidden_states" in keywords else arguments[0])[0])


def attention_module(model: PreTrainedModel, layer: int) -> Any:
    """The attention module of a layer."""
    decoder: Any = model.get_decoder()
    return decoder.layers[layer].self_attn


@torch.inference_mode()
def embedded_states(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    """Normalised input [N, hidden_size] of the first layer. It depends on the tokens [N] alone."""
    decoder: Any = model.get_decoder()
    embedded = decoder.embed_tokens(tokens.to(device_of(decoder.embed_tokens))[None])
    return decoder.layers[0].input_layernorm(embedded)[0]


@torch.inference_mode()
def raw_keys_values(model: PreTrainedModel, layer: int, states: Tensor) -> tuple[Tensor, Tensor]:
    """Keys before norm and rotary embedding, and values, [N, kv_heads * head_size] each, from a layer's inputs."""
    module = attention_module(model, layer)
    if hasattr(module, "qkv_proj"):
        width = model.config.get_text_config().num_key_value_heads * module.head_dim
        # The queries too: quantised weights cannot be cut into rows.
        return module.qkv_proj(states)[:, -2 * width :].chunk(2, dim=-1)
    return module.k_proj(states), module.v_proj(states)


@torch.inference_mode()
def finished_keys(model: PreTrainedModel, layer: int, raw: Tensor, positions: Tensor) -> Tensor:
    """Keys [kv_heads, N, head_size] as the cache holds them: raw keys [N, kv_heads * head_size], normalised and rotated."""
    module = attention_module(model, layer)
    keys = split_heads(model, layer, raw)
    if hasattr(module, "k_norm"):
        keys = module.k_norm(keys)
    rotary: Any = model.get_decoder().rotary_emb
    arguments = [keys[None], positions[None].to(keys.device)]
    if "layer_type" in inspect.signature(rotary.forward).parameters:
        # Gemma 3 has another base frequency in its sliding-window layers.
        arguments.append(model.config.get_text_config().layer_types[layer])
    # On several GPUs, the rotary module and the layer may be on different GPUs.
    cos, sin = (factor.to(keys.device) for factor in rotary(*arguments))
    return sys.modules[type(module).__module__].apply_rotary_pos_emb(keys[None], keys[None], cos, sin)[1][0]


def split_heads(model: PreTrainedModel, layer: int, flat: Tensor) -> Tensor:
    """A layer's keys or values [N, kv_heads * head_size] -> [kv_heads, N, head_size]."""
    return flat.unflatten(-1, (-1, attention_module(model, layer).head_dim)).transpose(0, 1)

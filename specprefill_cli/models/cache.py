"""The cache of keys and values: transformers' DynamicCache with room to grow and the position of every slot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

# Tokens that a cache has room for beyond its prompt before it must grow.
HEADROOM = 256


@dataclass
class PrefillState:
    """A model's cache with the absolute position of every slot: positions [K] on the CPU, int64."""

    cache: DynamicCache
    positions: Tensor

    @property
    def length(self) -> int:
        return len(self.positions)

    @property
    def layers(self) -> Sequence[BufferedLayer]:
        """The layers of the cache."""
        return cast("Sequence[BufferedLayer]", self.cache.layers)


class BufferedLayer(DynamicLayer):
    """A cache layer that writes into a buffer with spare room, so that decoding does not copy the cache for each token.

    expected: tokens to allocate at once
    slots: where the next keys and values go instead of behind the others, on the layer's device
    """

    keys: Tensor
    values: Tensor

    def __init__(self, expected: int) -> None:
        super().__init__()
        self.expected = expected
        self.buffers: tuple[Tensor, Tensor] | None = None
        self.slots: Tensor | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Append [1, kv_heads, N, head_size] and return all keys and values: views [1, kv_heads, K, head_size]."""
        if self.slots is not None:
            for held, new in ((self.keys, key_states), (self.values, value_states)):
                held.index_copy_(-2, self.slots, new)
            return self.keys, self.values
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        length = self.get_seq_length()
        needed = length + key_states.shape[-2]
        if self.buffers is None or needed > self.buffers[0].shape[-2]:
            room = max(self.expected, needed) + max(HEADROOM, length // 4)
            keys, values = (new.new_empty(*new.shape[:-2], room, new.shape[-1]) for new in (key_states, value_states))
            if length:
                keys[..., :length, :], values[..., :length, :] = self.keys, self.values
            self.buffers = keys, values
        for buffer, new in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[..., length:needed, :] = new
        self.keys, self.values = (buffer[..., :needed, :] for buffer in self.buffers)
        return self.keys, self.values


def new_state(expected: int = 0) -> PrefillState:
    """An empty cache for about `expected` tokens.

    Layers with a sliding window grow like the others: attention masks them by position.
    """
    cache = DynamicCache()
    cache.layer_class_to_replicate = cast("type[BufferedLayer]", partial(BufferedLayer, expected))
    return PrefillState(cache, torch.empty(0, dtype=torch.long))


def rollback(state: PrefillState, length: int) -> None:
    """Keep the first `length` slots of every layer and of the positions, also after a pass that was interrupted."""
    for layer in state.layers:
        layer.slots = None
        layer.crop(min(0, length - layer.get_seq_length()))
    state.positions = state.positions[:length]


def layer_tensors(state: PrefillState, length: int, layers: int) -> list[tuple[Tensor, Tensor]]:
    """Keys and values [1, kv_heads, length, head_size] of the first `length` slots in the lower `layers` layers."""
    return [(layer.keys[..., :length, :], layer.values[..., :length, :]) for layer in list(state.layers)[:layers]]


def restore_state(model: PreTrainedModel, tensors: Sequence[tuple[Tensor, Tensor]]) -> PrefillState:
    """A state of a prompt's first K tokens from keys and values [1, kv_heads, K, head_size] of the lower layers."""
    length = tensors[0][0].shape[-2]
    state = new_state(length)
    for number, (keys, values) in enumerate(tensors):
        device = device_of(model.get_decoder().layers[number])
        state.cache.update(keys.to(device), values.to(device), number)
    state.positions = torch.arange(length)
    return state


def device_of(module: nn.Module) -> torch.device:
    """Where a module computes: on the device of its weights, or where accelerate moves them for each pass."""
    device = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
    if device is None:
        return next(module.parameters()).device
    return torch.device("cuda", device) if isinstance(device, int) else torch.device(device)


def state_bytes(state: PrefillState) -> int:
    """Bytes of a state, with its spare room."""
    tensors = (tensor for layer in state.layers if layer.is_initialized for tensor in (layer.keys, layer.values))
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def layer_keys(state: PrefillState, layer: int) -> Tensor:
    """The keys of one cache layer as attention uses them: [kv_heads, K, head_size], rotated."""
    return state.layers[layer].keys[0]

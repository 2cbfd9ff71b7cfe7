"""The cache of keys and values: transformers' DynamicCache with room to grow and the position of every slot."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import cast
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

# Tokens that a cache has room for beyond its prompt before it must grow.
HEADROOM = 256


@dataclass
class KvCacheState:
    """A model's cache with the absolute position of every slot: positions [K] on the CPU, int64."""

    cache: DynamicCache
    positions: Tensor

    @property
    def length(self) -> int:
        return len(self.positions)

    @property
    def layers(self) -> Sequence["BufferedLayer"]:
        return cast("Sequence[BufferedLayer]", self.cache.layers)


@dataclass(eq=False, kw_only=True)
class KvBuffers:
    """Keys and values [1, kv_heads, room, head_size] of a layer, with spare room.

    active_branch: the layer with its own slots after the shared ones; weak, so that ended answers are freed
    """

    keys: Tensor
    values: Tensor
    active_branch: ReferenceType["BufferedLayer"]


class BufferedLayer(DynamicLayer):
    """A cache layer that writes into a buffer with spare room, so that decoding does not copy the cache for each token.

    Several layers may share the first slots of a buffer. One of them, the active branch, has its own slots after
    these; any other holds a copy of its own, short beside a document, until it is swapped in: to be read or to grow.

    expected: tokens to allocate at once
    shared: how many of the first slots other layers read too; these never change
    slots: where the next keys and values go, on the layer's device; None: after the others
    """

    keys: Tensor
    values: Tensor

    def __init__(self, expected: int) -> None:
        super().__init__()
        self.expected = expected
        self.shared = 0
        self.buffers: KvBuffers | None = None
        self.swapped_out: tuple[Tensor, Tensor] | None = None
        self.slots: Tensor | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Append [1, kv_heads, N, head_size] and return all keys and values: views [1, kv_heads, K, head_size]."""
        if self.slots is not None:
            for held, new in zip(self.claim(), (key_states, value_states), strict=True):
                held.index_copy_(-2, self.slots, new)
            return self.keys, self.values
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        length = self.get_seq_length()
        needed = length + key_states.shape[-2]
        if self.buffers is None:
            keys, values = (self.enlarge(new[..., :0, :], needed) for new in (key_states, value_states))
            self.buffers = KvBuffers(keys=keys, values=values, active_branch=ref(self))
        buffers = self.buffers
        if buffers.active_branch() is not self or needed > buffers.keys.shape[-2]:
            self.swap_in(buffers, needed)
        # `narrow` takes half the time of an index; this runs for every token, layer and sequence.
        for buffer, new in ((buffers.keys, key_states), (buffers.values, value_states)):
            buffer.narrow(-2, length, needed - length).copy_(new)
        self.keys, self.values = buffers.keys.narrow(-2, 0, needed), buffers.values.narrow(-2, 0, needed)
        return self.keys, self.values

    def claim(self) -> tuple[Tensor, Tensor]:
        """All keys and values; swaps this layer in first where another is the active branch."""
        if self.buffers is not None and self.buffers.active_branch() is not self:
            self.swap_in(self.buffers, self.get_seq_length())
        return self.keys, self.values

    # The buffers were made in inference mode.
    @torch.inference_mode()
    def swap_in(self, buffers: KvBuffers, room: int) -> None:
        """Become the active branch of buffers with room for at least `room` slots."""
        length, active = self.get_seq_length(), buffers.active_branch()
        outside = active is not self
        if outside and active is not None:
            keys, values = (held[..., active.shared :, :].clone() for held in (active.keys, active.values))
            active.swapped_out = keys, values
        if room > buffers.keys.shape[-2]:
            kept = self.shared if outside else length
            old = (states[..., :kept, :] for states in (buffers.keys, buffers.values))
            buffers.keys, buffers.values = (self.enlarge(states, room) for states in old)
        if outside and self.swapped_out is not None:
            for buffer, states in zip((buffers.keys, buffers.values), self.swapped_out, strict=True):
                buffer[..., self.shared : length, :] = states[..., : length - self.shared, :]
        self.swapped_out = None
        buffers.active_branch = ref(self)
        self.keys, self.values = buffers.keys[..., :length, :], buffers.values[..., :length, :]

    def enlarge(self, held: Tensor, needed: int) -> Tensor:
        """Copy the held slots [1, kv_heads, K, head_size] into a buffer with room for at least `needed` slots."""
        length = held.shape[-2]
        room = max(self.expected, needed) + max(HEADROOM, length // 4)
        buffer = held.new_empty(*held.shape[:-2], room, held.shape[-1])
        buffer[..., :length, :] = held
        return buffer

    def fork_prefix(self, length: int) -> "BufferedLayer":
        """A layer that shares the first slots, uncopied. Raises ValueError where others share another number."""
        if self.shared not in (0, length) or self.buffers is None:
            raise ValueError(f"cannot share {length} slots: other layers share {self.shared}")
        self.shared = length
        if self.get_seq_length() == length:
            # Views of the present buffers: views of earlier, smaller buffers would keep those alive.
            self.keys, self.values = self.buffers.keys[..., :length, :], self.buffers.values[..., :length, :]
        branch = BufferedLayer(self.expected)
        branch.lazy_initialization(self.keys, self.values)
        branch.shared, branch.buffers = length, self.buffers
        branch.keys, branch.values = self.buffers.keys[..., :length, :], self.buffers.values[..., :length, :]
        return branch


def new_state(expected: int = 0) -> KvCacheState:
    """An empty cache for about `expected` tokens. Layers with a sliding window grow like the others."""
    cache = DynamicCache()
    cache.layer_class_to_replicate = cast("type[BufferedLayer]", partial(BufferedLayer, expected))
    return KvCacheState(cache, torch.empty(0, dtype=torch.long))


def fork_prefix(state: KvCacheState, length: int) -> KvCacheState:
    """A state that shares the first `length` slots of the layers that hold them all, without a copy."""
    branch = new_state()
    for layer in state.layers:
        if layer.get_seq_length() < length:
            break
        branch.cache.layers.append(layer.fork_prefix(length))
    branch.positions = state.positions[:length]
    return branch


def rollback(state: KvCacheState, length: int) -> None:
    """Keep the first `length` slots of every layer and of the positions, also after a pass that was interrupted."""
    for layer in state.layers:
        layer.slots = None
        layer.crop(min(0, length - layer.get_seq_length()))
    state.positions = state.positions[:length]


def layer_count(model: PreTrainedModel) -> int:
    """Layers of a model."""
    return model.config.get_text_config().num_hidden_layers


def device_of(module: nn.Module) -> torch.device:
    """Where a module computes: on the device of its weights."""
    return next(chain(module.parameters(), module.buffers())).device


def copy_to(tensor: Tensor, device: torch.device) -> Tensor:
    """A CPU tensor on a device; the copy to a CUDA device does not wait for earlier work there."""
    return tensor.to(device, non_blocking=device.type == "cuda")


def state_bytes(state: KvCacheState) -> int:
    """Bytes of a state, with its spare room."""
    tensors = (tensor for layer in state.layers if layer.is_initialized for tensor in (layer.keys, layer.values))
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def layer_keys(state: KvCacheState, layer: int) -> Tensor:
    """The keys of a cache layer as attention uses them: [kv_heads, K, head_size], rotated."""
    return state.layers[layer].claim()[0][0]

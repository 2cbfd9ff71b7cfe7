"""Decoding with fixed buffers, as a CUDA graph needs it: a trial, which the product does not use until a GPU shows that it pays.

Every step runs the same kernels on the same memory: keys and values have room for the whole answer, token, position and slot
are tensors on the device, and a mask hides the slots that are still empty.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specprefill_cli.models.cache import KvCacheState
from specprefill_cli.models.one_token import OneTokenPass

# Steps before a capture, so that libraries have chosen their kernels and taken their memory.
WARM_STEPS = 3


@dataclass(kw_only=True, eq=False)
class FixedCache:
    """Keys and values with room for a fixed number of slots; stands in for the cache of a state.

    buffers: for each layer, keys and values [1, kv_heads, room, head_size]
    slot: [1] where the next token's keys and values go
    """

    buffers: list[tuple[Tensor, Tensor]]
    slot: Tensor

    @classmethod
    def of(cls, state: KvCacheState, room: int) -> FixedCache:
        """A copy of a state's keys and values with room for `room` slots in all."""
        buffers = []
        for layer in state.layers:
            keys, values = (
                torch.cat([held, held.new_zeros(*held.shape[:2], room - state.length, held.shape[3])], dim=2)
                for held in layer.claim()
            )
            buffers.append((keys, values))
        return cls(buffers=buffers, slot=torch.tensor([state.length], device=buffers[0][0].device))

    def update(self, key_states: Tensor, value_states: Tensor, layer: int, /) -> tuple[Tensor, Tensor]:
        """Write a token's keys and values [1, kv_heads, 1, head_size] into the slot, and return all slots."""
        keys, values = self.buffers[layer]
        keys.index_copy_(2, self.slot, key_states)
        values.index_copy_(2, self.slot, value_states)
        return keys, values


class FixedDecoder:
    """Greedy decoding of one sequence; each step takes its token, position and slot from the last, without the host.

    token, position: [1], of the next step; room: slots for prompt and answer together
    """

    def __init__(self, model: PreTrainedModel, state: KvCacheState, token: int, position: int, room: int) -> None:
        self.cache = FixedCache.of(state, room)
        device = self.cache.slot.device
        self.token, self.position = torch.tensor([token], device=device), torch.tensor([position], device=device)
        self.slots = torch.arange(room, device=device)
        self.run_pass = OneTokenPass(model)
        self.graph: torch.cuda.CUDAGraph | None = None

    @torch.inference_mode()
    def step(self) -> Tensor:
        """Decode a token: [1], on the device, overwritten by the next step."""
        if self.graph is None:
            self.compute()
        else:
            self.graph.replay()
        return self.token

    def compute(self) -> None:
        """The kernels of a step; no shape and no address depends on the number of tokens decoded so far."""
        visible = self.slots <= self.cache.slot
        logits = self.run_pass(self.token, self.position, self.cache, visible[None, None, None])
        self.token.copy_(logits.argmax(-1))
        self.position.add_(1)
        self.cache.slot.add_(1)

    @torch.inference_mode()
    def capture(self) -> None:
        """Record a step as a CUDA graph; `WARM_STEPS` steps run before, and are undone."""
        before = [tensor.clone() for tensor in (self.token, self.position, self.cache.slot)]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_STEPS):
                self.compute()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.compute()
        for tensor, value in zip((self.token, self.position, self.cache.slot), before, strict=True):
            tensor.copy_(value)
        self.graph = graph

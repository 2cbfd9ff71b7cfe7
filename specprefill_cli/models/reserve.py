"""Memory for a long prompt's keys and values, taken from the driver before the prompt comes."""

from __future__ import annotations

import torch

from specprefill_cli.models.adapter import free_memory
from specprefill_cli.models.cache import HEADROOM, device_of
from specprefill_cli.models.loading import LoadedModel, LoadedPair
from specprefill_cli.models.raw_kv import decoder_layer, key_value_size, layer_count

# Part of a device's free memory that is taken at most: the rest is for the passes themselves.
SHARE = 0.5


def reserve_cache(pair: LoadedPair, tokens: int) -> int:
    """Allocate both models' keys and values of so many tokens and free them: torch keeps the memory for the next cache.

    Returns the bytes that were allocated: 0 where they are too large a part of what is free.
    """
    models = [model for model in (pair.target, pair.draft) if isinstance(model, LoadedModel)]
    places = [
        (device_of(decoder_layer(loaded.model, layer)), loaded.model.dtype, key_value_size(loaded.model, layer))
        for loaded in models
        for layer in range(layer_count(loaded.model))
    ]
    room = tokens + HEADROOM
    needed: dict[torch.device, int] = {}
    for device, dtype, (heads, size) in places:
        needed[device] = needed.get(device, 0) + 2 * room * heads * size * dtype.itemsize
    if any(size > SHARE * free_memory(device) for device, size in needed.items()):
        return 0
    held = [
        torch.empty(1, heads, room, size, dtype=dtype, device=device)
        for device, dtype, (heads, size) in places
        for _ in ("keys", "values")
    ]
    return sum(buffer.nbytes for buffer in held)

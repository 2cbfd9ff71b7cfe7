"""How many tokens one forward pass reads."""

from __future__ import annotations

from specprefill_cli.models.adapter import free_memory, rotation_depends_on_length
from specprefill_cli.models.cost import ModelCost, cost_of
from specprefill_cli.models.loading import LoadedModel, LoadedPair
from specprefill_cli.models.memory_estimate import cache_bytes
from specprefill_cli.settings import AUTO

# Above the largest a pass only needs more memory; below the smallest its fixed cost shows.
LARGEST, LARGEST_ON_CPU, SMALLEST = 16_384, 4_096, 512
# Part of the memory beside the cache that the tensors of a pass may take; the rest is for masks, fragmentation and others.
SHARE = 0.25


def pass_size(setting: str | int, pair: LoadedPair, prompt_tokens: int) -> int:
    """Tokens of a pass over a prompt: the setting of `--prefill-chunk`, or for `auto` what free memory allows.

    `auto` is the smaller of the two models' sizes. Models that rotate keys by the length of a pass (`longrope`) read the
    whole prompt at once whatever the setting: keys of one cache must be rotated alike.
    """
    # A target without weights does not run.
    loaded = [model for model in (pair.target, pair.draft) if isinstance(model, LoadedModel)]
    if any(rotation_depends_on_length(model.config) for model in loaded):
        return max(prompt_tokens, SMALLEST)
    if setting != AUTO:
        return int(setting)
    return min((model_pass_size(model, prompt_tokens) for model in loaded), default=LARGEST)


def model_pass_size(model: LoadedModel, prompt_tokens: int) -> int:
    """`choose_pass_size` for a model whose layers and cache are spread evenly over its devices."""
    dtype = model.model.dtype
    cache = cache_bytes(model.config, min(prompt_tokens, model.context), dtype) // len(model.devices)
    free = min(free_memory(device) for device in model.devices)
    largest = LARGEST_ON_CPU if any(device.type in ("cpu", "mps") for device in model.devices) else LARGEST
    return choose_pass_size(free, cache, pass_bytes(cost_of(model), dtype.itemsize), largest)


def choose_pass_size(free: int, cache: int, token_bytes: int, largest: int = LARGEST) -> int:
    """The largest power of two, from SMALLEST to `largest`, whose tokens fit SHARE of the free memory.

    free: bytes free on the device; cache: bytes that the prompt's keys and values will take of them
    token_bytes: of one token in a pass (`pass_bytes`)

    Powers of two, so that slightly different free memory seldom changes the grouping of sums, and so their last bits.
    """
    fitting = int(SHARE * max(0, free - cache)) // token_bytes
    return min(largest, max(SMALLEST, 1 << max(0, fitting.bit_length() - 1)))


def pass_bytes(cost: ModelCost, itemsize: int) -> int:
    """Bytes of one token in a pass at its peak, inside one layer, beside weights and cache.

    Two hidden states all the time (the residual, and its normed copy), and then either the queries twice (before and
    after rotation), keys and values twice (in the cache, too, but that is counted there) and the mixed values; or the
    MLP's gate, its activation and the other branch.
    """
    attention = cost.head_size * (3 * cost.heads + 4 * cost.key_value_heads)
    return itemsize * (2 * cost.hidden_size + max(attention, 3 * cost.intermediate_size))

"""How many tokens a forward pass reads at once, where nobody said."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specprefill_cli.models.adapter import free_memory, rotation_depends_on_length
from specprefill_cli.models.cost import ModelCost
from specprefill_cli.models.memory_estimate import cache_bytes
from specprefill_cli.prefill.auto_mode import cost_of
from specprefill_cli.settings import AUTO

if TYPE_CHECKING:
    from specprefill_cli.models.loading import LoadedModel, LoadedPair
    from specprefill_cli.settings import Settings

# Beyond the largest, a pass only needs more memory; below the smallest, its fixed cost is felt. On a CPU `tiny` reads
# 16,000 tokens as fast in passes of 2,048 as in one, and 4,096 in two passes up to a tenth slower than in one; its draft,
# which reads with a window, does too.
LARGEST, LARGEST_ON_CPU, SMALLEST = 16_384, 4_096, 512
# Of the memory that the cache leaves, for the tensors of a pass. The rest is for masks, for the allocator's waste, and
# for whoever else runs on the machine.
SHARE = 0.25


def pass_size(settings: Settings, pair: LoadedPair, prompt_tokens: int) -> int:
    """Tokens of a pass over a prompt: what the settings say, or for `auto` what the memory free just now allows.

    The smaller of the two models' sizes; of models whose keys turn with the length of a pass (`longrope`), the whole
    prompt whatever the settings say: keys of one cache must have turned alike.
    """
    # Of a target that only lends its outline nothing runs.
    loaded = [model for model in (pair.target, pair.draft) if model is not None and model.devices]
    if any(rotation_depends_on_length(model.config) for model in loaded):
        return max(prompt_tokens, SMALLEST)
    if settings.prefill_chunk != AUTO:
        return settings.prefill_chunk
    return min((model_pass_size(model, prompt_tokens) for model in loaded), default=LARGEST)


def model_pass_size(model: LoadedModel, prompt_tokens: int) -> int:
    """`choose_pass_size` for a model where it is, its layers and their cache spread evenly over its devices."""
    dtype = model.model.dtype
    cache = cache_bytes(model.config, prompt_tokens, dtype) // len(model.devices)
    free = min(free_memory(device) for device in model.devices)
    largest = LARGEST_ON_CPU if any(device.type in ("cpu", "mps") for device in model.devices) else LARGEST
    return choose_pass_size(free, cache, pass_bytes(cost_of(model), dtype.itemsize), largest)


def choose_pass_size(free: int, cache: int, token_bytes: int, largest: int = LARGEST) -> int:
    """The largest power of two, from SMALLEST to `largest`, whose tokens fit the share of memory that is theirs.

    free: bytes free on the device; cache: bytes that the prompt's keys and values will take of them
    token_bytes: of one token in a pass (`pass_bytes`)

    Powers of two, so that a little more or less free memory seldom changes how sums are grouped, and so their last bits.
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

"""Memory: how much weights, a pass, documents' KV and running answers take, how much is free, and how it is divided."""

from typing import Any

import psutil
import torch
from transformers import PretrainedConfig

from specprefill_cli.models.loaded import LoadedModel, LoadedPair, ModelOutline
from specprefill_cli.models.machine.cost import ModelCost, cost_of
from specprefill_cli.models.machine.quantization import NONE, checkpoint_method, packed_bytes
from specprefill_cli.models.running.adapter import rotation_depends_on_length
from specprefill_cli.models.running.int8 import STORED
from specprefill_cli.models.running.supported import empty_model
from specprefill_cli.settings import AUTO

GIBIBYTE = 2**30
# Shares of free memory: of a GPU's for weights; then, of what these leave, for the tensors of a pass and for documents' KV.
# The rest is for the next prompt's cache, masks, fragmentation and other programs.
WEIGHTS_SHARE, PASS_SHARE, KV_SHARE = 0.8, 0.25, 0.25
# Main memory is for other programs, too.
MOST_KV_IN_MAIN_MEMORY = 2 * GIBIBYTE
# Tokens of a pass. A larger pass only needs more memory; in a smaller pass the fixed cost shows.
LARGEST, LARGEST_ON_CPU, SMALLEST = 16_384, 4_096, 512


def pass_size(pair: LoadedPair, setting: str | int, prompt_tokens: int) -> int:
    """Tokens of a pass: the setting of `prefill_chunk`, or for `auto` what free memory allows both models.

    Models with `longrope` read the whole prompt at once: keys of a cache must be rotated alike.
    """
    loaded: list[Any] = [model for model in (pair.target, pair.draft) if hasattr(model, "model")]
    if any(rotation_depends_on_length(model.config) for model in loaded):
        return max(prompt_tokens, SMALLEST)
    if setting != AUTO:
        return int(setting)
    return min((model_pass_size(model, prompt_tokens) for model in loaded), default=LARGEST)


def kv_bytes(pair: LoadedPair, setting: str | float) -> int:
    """Bytes of documents' KV that `--memory-cache` allows; the fullest of the target's devices decides."""
    if setting != AUTO:
        return int(float(setting) * GIBIBYTE)
    limit = int(KV_SHARE * min(map(free_memory, pair.devices), default=0) * max(1, len(pair.target.devices)))
    return limit if all(device.type == "cuda" for device in pair.devices) else min(limit, MOST_KV_IN_MAIN_MEMORY)


def free_memory(device: torch.device) -> int:
    """Bytes available to new tensors on a device, torch's cached blocks included."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    return psutil.virtual_memory().available


def model_pass_size(loaded: LoadedModel, prompt_tokens: int) -> int:
    """The largest power of two of tokens that fits PASS_SHARE of the memory that the prompt's cache leaves.

    Layers and cache are taken to be spread evenly over devices and ranks. Powers of two, so that slightly different free
    memory seldom changes the grouping of sums, and with it their last bits.
    """
    cache = token_bytes(loaded) * min(prompt_tokens, loaded.context) // (len(loaded.devices) * cost_of(loaded).ranks)
    room = max(0, min(map(free_memory, loaded.devices)) - cache)
    fitting = int(PASS_SHARE * room) // pass_bytes(loaded)
    largest = LARGEST_ON_CPU if any(device.type == "cpu" for device in loaded.devices) else LARGEST
    return min(largest, max(SMALLEST, 1 << max(0, fitting.bit_length() - 1)))


def pass_bytes(loaded: LoadedModel) -> int:
    """Bytes of a token in a pass at its peak, inside a layer, without weights and cache."""
    cost = cost_of(loaded)
    # Two hidden states, and the larger of attention (queries before and after rotation, keys and values twice, the
    # mixed values) and MLP (the gate, its activation and the other branch).
    attention = cost.head_size * (3 * cost.heads + 4 * cost.key_value_heads)
    return loaded.model.dtype.itemsize * (2 * cost.hidden_size + max(attention, 3 * cost.intermediate_size))


def token_bytes(loaded: LoadedModel | ModelOutline | None) -> int:
    """Bytes of a token's keys and values; 0 for a model that is not loaded."""
    model = getattr(loaded, "model", None)
    return 0 if loaded is None or model is None else cache_bytes(loaded.config, 1, model.dtype)


def cache_bytes(config: PretrainedConfig, tokens: int, dtype: torch.dtype) -> int:
    """Bytes of the keys and values of `tokens` tokens in every layer."""
    cost = ModelCost.of(config)
    return 2 * tokens * cost.layers * cost.key_value_heads * cost.head_size * dtype.itemsize


def weight_bytes(config: PretrainedConfig, dtype: torch.dtype, quantization: str = NONE) -> int:
    """Bytes of a model's weights, shared ones counted once; quantization packs matrices, but only `STORED` embeddings.

    quantization: NONE or a key of `BYTES_PER_WEIGHT`; a quantised checkpoint keeps its own bits
    """
    model, bytes_per_weight = empty_model(config), packed_bytes(quantization, config)
    total = model.num_parameters()
    if bytes_per_weight is None:
        return total * dtype.itemsize
    embeddings = (model.get_input_embeddings(), model.get_output_embeddings())
    is_own = checkpoint_method(config) == STORED["quant_method"]
    kept = {id(weight) for module in embeddings if module is not None and not is_own for weight in module.parameters()}
    packed = sum(weight.numel() for weight in model.parameters() if weight.dim() > 1 and id(weight) not in kept)
    return round(packed * bytes_per_weight) + (total - packed) * dtype.itemsize

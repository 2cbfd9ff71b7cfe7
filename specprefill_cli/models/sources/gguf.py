"""GGUF files: opening one, its metadata, and the configuration that transformers gives to the same model."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader

from specprefill_cli.errors import SpecprefillError, first_line
from specprefill_cli.models.sources.hub_gguf import PART

# Settings that a file does not state, by `general.architecture`. Files of Mistral models say "llama".
ARCHITECTURES: Mapping[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "qwen2": {"model_type": "qwen2", "use_sliding_window": False},
    "qwen3": {"model_type": "qwen3", "use_sliding_window": False},
    "gemma3": {"model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh"},
    "phi3": {"model_type": "phi3"},
}
# Bases of the rotary frequencies: where a file states none, and of Gemma's layers with a sliding window.
ROPE_BASE = 10_000.0
# Layers of the Gemma whose attention is scaled by the hidden size of a head, not by its own size.
LARGEST_GEMMA_LAYERS = 62
# The scaling of Llama 3's frequencies, and the tensors that hold the factors of single frequencies.
LLAMA3_SCALING = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
ROPE_FACTORS = "rope_freqs.weight"
SHORT_FACTORS, LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"


class QuickReader(GGUFReader):
    """The package's reader, which takes seconds to slice its memory map once for each of a tokenizer's strings."""

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> np.ndarray:
        order = self.byte_order if override_order is None else override_order
        return np.frombuffer(self.data, np.dtype(dtype).newbyteorder(order), int(count), int(offset))


def read_gguf(path: Path) -> GGUFReader:
    """Open a file: its metadata and the places of its tensors. Raises SpecprefillError if it is damaged or unreadable."""
    try:
        reader = QuickReader(path)
        for part in other_parts(path):
            reader.tensors.extend(QuickReader(part).tensors)
        return reader
    except (OSError, ValueError, LookupError, ArithmeticError, MemoryError) as error:
        problem = f"{path}: not a whole GGUF file ({first_line(error)}); download or install it again"
        raise SpecprefillError(problem) from error


def other_parts(path: Path) -> list[Path]:
    """The other parts of a file that is the first of several, in order. Their metadata is only in the first."""
    part = PART.search(path.name)
    if part is None or int(part[1]) != 1:
        return []
    count = int(part[2])
    return [path.with_name(PART.sub(f"-{number:05}-of-{count:05}", path.name)) for number in range(2, count + 1)]


def value(reader: GGUFReader, key: str, default: Any = None) -> Any:
    """A value of the metadata. Raises SpecprefillError if it is missing and has no default."""
    field = reader.fields.get(key)
    if field is not None:
        return field.contents()
    if default is None:
        raise SpecprefillError(f"{reader.data.filename}: lacks {key}; download or export the file again")
    return default


def refuse(reader: GGUFReader, what: str) -> SpecprefillError:
    """The error for a file of a kind that cannot be converted."""
    remedy = "give the model's checkpoint as a folder"
    return SpecprefillError(f"{reader.data.filename}: {what} cannot be converted; {remedy}")


def configuration(reader: GGUFReader) -> dict[str, Any]:
    """The configuration of the model, as transformers stores it.

    Raises SpecprefillError for an architecture, or a scaling of its rotary frequencies, that is unknown, and for a
    mixture of experts.
    """
    prefix = value(reader, "general.architecture")
    if prefix not in ARCHITECTURES:
        raise refuse(reader, f"a model of the architecture {prefix} (known are {', '.join(ARCHITECTURES)})")
    if f"{prefix}.expert_count" in reader.fields:
        raise refuse(reader, "a mixture of experts")

    def stated(key: str, default: Any = None) -> Any:
        return value(reader, f"{prefix}.{key}", default)

    heads, hidden = stated("attention.head_count"), stated("embedding_length")
    rotated = stated("rope.dimension_count", 0)
    head_size = stated("attention.key_length", rotated if prefix == "llama" and rotated else hidden // heads)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    if "token_embd.weight" not in tensors:
        raise refuse(reader, "a file without the tensor token_embd.weight (the first of several parts?)")
    ends = (value(reader, f"tokenizer.ggml.{kind}_token_id", -1) for kind in ("eos", "eot"))
    end_tokens = list(dict.fromkeys(token for token in ends if token >= 0))
    config = {
        "hidden_size": hidden,
        "num_hidden_layers": stated("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": stated("attention.head_count_kv", heads),
        "head_dim": head_size,
        "intermediate_size": stated("feed_forward_length"),
        "vocab_size": int(tensors["token_embd.weight"].shape[1]),
        "max_position_embeddings": stated("context_length"),
        # Stored in float32, 1e-05 reads as 9.9999997e-06.
        "rms_norm_eps": float(f"{stated('attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_parameters": rope_parameters(reader, prefix),
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "tie_word_embeddings": "output.weight" not in tensors,
        "dtype": "bfloat16",
        "bos_token_id": value(reader, "tokenizer.ggml.bos_token_id", end_tokens[0]),
        "eos_token_id": end_tokens if len(end_tokens) > 1 else end_tokens[0],
        "pad_token_id": value(reader, "tokenizer.ggml.padding_token_id", end_tokens[0]),
        **ARCHITECTURES[prefix],
    }
    if prefix == "phi3":
        config["rope_parameters"] |= {"partial_rotary_factor": (rotated or head_size) / head_size}
        config["sliding_window"] = stated("attention.sliding_window", 0) or None
    if prefix == "gemma3":
        sliding = {"rope_type": "default", "rope_theta": ROPE_BASE}
        config["rope_parameters"] = {"full_attention": config["rope_parameters"], "sliding_attention": sliding}
        is_largest = config["num_hidden_layers"] == LARGEST_GEMMA_LAYERS
        config["query_pre_attn_scalar"] = hidden // heads if is_largest else head_size
        config["sliding_window"] = stated("attention.sliding_window")
    return config


def rope_parameters(reader: GGUFReader, prefix: str) -> dict[str, Any]:
    """The rotary frequencies of the model, as transformers states them. Raises SpecprefillError for an unknown scaling."""
    base = {"rope_theta": float(value(reader, f"{prefix}.rope.freq_base", ROPE_BASE))}
    scaling = value(reader, f"{prefix}.rope.scaling.type", "none")
    factors = {tensor.name: tensor.data for tensor in reader.tensors if tensor.name.startswith("rope_")}
    if LONG_FACTORS in factors:
        return base | {
            "rope_type": "longrope",
            "short_factor": factors[SHORT_FACTORS].tolist(),
            "long_factor": factors[LONG_FACTORS].tolist(),
            "original_max_position_embeddings": value(reader, f"{prefix}.rope.scaling.original_context_length"),
        }
    if ROPE_FACTORS in factors:
        parameters = base | LLAMA3_SCALING | {"rope_type": "llama3", "factor": float(max(factors[ROPE_FACTORS]))}
        if not np.allclose(llama3_factors(parameters, len(factors[ROPE_FACTORS])), factors[ROPE_FACTORS], rtol=1e-3):
            raise refuse(reader, f"the scaling of {ROPE_FACTORS}")
        return parameters
    if scaling == "linear":
        return base | {"rope_type": "linear", "factor": float(value(reader, f"{prefix}.rope.scaling.factor"))}
    if scaling != "none":
        raise refuse(reader, f"the scaling '{scaling}' of its positions")
    return base | {"rope_type": "default"}


def llama3_factors(parameters: dict[str, Any], count: int) -> np.ndarray:
    """By what Llama 3 divides each of its `count` rotary frequencies (Hugging Face's and Meta's published rule)."""
    wavelengths = 2 * math.pi * parameters["rope_theta"] ** (np.arange(count) / count)
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    ratio = parameters["original_max_position_embeddings"] / wavelengths
    share = ((ratio - low) / (high - low)).clip(0, 1)
    return 1 / ((1 - share) / parameters["factor"] + share)

"""Llama models in GGUF files: configuration and tokenizer, and weights under transformers' names and in its order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from specprefill_cli.errors import SpecprefillError, first_line

TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_1")
# GGUF's names of a model's tensors and of a layer's, and those of transformers.
TENSORS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL, USER_DEFINED = 3, 4


def read_gguf(path: Path) -> GGUFReader:
    """Open a file: its metadata and the places of its tensors. Raises SpecprefillError if it is damaged or unreadable."""
    try:
        return GGUFReader(path)
    except (OSError, ValueError, LookupError, ArithmeticError, MemoryError) as error:
        raise SpecprefillError(
            f"{path}: not a whole GGUF file ({first_line(error)}); download or install it again"
        ) from error


def value(reader: GGUFReader, key: str, default: Any = None) -> Any:
    """A value of the metadata. Raises SpecprefillError if it is missing and has no default."""
    field = reader.fields.get(key)
    if field is not None:
        return field.contents()
    if default is None:
        raise SpecprefillError(f"{file_name(reader)}: lacks {key}; download or export the file again")
    return default


def file_name(reader: GGUFReader) -> str:
    """The path of an open file."""
    return str(reader.data.filename)


def llama_config(reader: GGUFReader) -> dict[str, Any]:
    """The configuration of the model, as transformers stores it. Raises SpecprefillError for another architecture."""
    architecture = value(reader, "general.architecture")
    if architecture != "llama" or "llama.expert_count" in reader.fields or "llama.rope.scaling.type" in reader.fields:
        raise SpecprefillError(
            f"{file_name(reader)}: only plain llama models can be converted, this is {architecture}; give its checkpoint"
        )
    heads, hidden = value(reader, "llama.attention.head_count"), value(reader, "llama.embedding_length")
    names = {tensor.name for tensor in reader.tensors}
    # Stored in float32, 1e-05 reads as 9.9999997e-06.
    epsilon = float(f"{value(reader, 'llama.attention.layer_norm_rms_epsilon'):.6g}")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": value(reader, "llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": value(reader, "llama.attention.head_count_kv", heads),
        "head_dim": value(reader, "llama.rope.dimension_count", hidden // heads),
        "intermediate_size": value(reader, "llama.feed_forward_length"),
        "vocab_size": len(reader.fields["tokenizer.ggml.tokens"].data),
        "max_position_embeddings": value(reader, "llama.context_length"),
        "rms_norm_eps": epsilon,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": float(value(reader, "llama.rope.freq_base", 10_000.0)),
        },
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": "output.weight" not in names,
        "dtype": "bfloat16",
        "bos_token_id": value(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": value(reader, "tokenizer.ggml.eos_token_id"),
        "pad_token_id": value(reader, "tokenizer.ggml.padding_token_id", value(reader, "tokenizer.ggml.eos_token_id")),
    }


def weight_name(name: str) -> str | None:
    """The name that transformers gives a GGUF tensor; None for an unknown tensor."""
    stem, _, suffix = name.rpartition(".")
    if suffix != "weight":
        return None
    if stem in TENSORS:
        return f"{TENSORS[stem]}.weight"
    block, _, rest = stem.partition(".")
    number, _, part = rest.partition(".")
    known = block == "blk" and number.isdecimal() and part in LAYER_TENSORS
    return f"model.layers.{number}.{LAYER_TENSORS[part]}.weight" if known else None


def weights(reader: GGUFReader, config: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Names and float32 values of all weights. Raises SpecprefillError for a tensor of an unknown name or type."""
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    # Check every tensor before unpacking any: unpacking takes a while.
    for tensor in reader.tensors:
        tensor_type = tensor.tensor_type
        if weight_name(tensor.name) is None or tensor_type.name not in TYPES:
            raise SpecprefillError(
                f"{file_name(reader)}: tensor {tensor.name} of type {tensor_type.name} cannot be converted; "
                f"give a llama file of {', '.join(TYPES)}"
            )
    for tensor in reader.tensors:
        # An unquantised tensor is a read-only view of the file.
        array = np.require(dequantize(tensor.data, tensor.tensor_type), np.float32, "W")
        part = tensor.name.split(".")[-2]
        yield str(weight_name(tensor.name)), in_halves(array, heads[part]) if part in heads else array


def in_halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows [heads x size, in] of a query or key projection, in the order of transformers' rotation.

    llama.cpp rotates pairs of neighbouring rows, transformers pairs of rows half a head apart.
    """
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


# How text is split before byte pairs are merged, by the name of the rules in the file.
BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
SPLITTERS = {
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTE_LEVEL]),
    "gpt-2": BYTE_LEVEL,
}
# The file's key for a special token's id, by the token's name in transformers' configuration.
ROLES: Mapping[str, str] = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}


def build_tokenizer(reader: GGUFReader) -> Tokenizer:
    """The tokenizer with the file's tokens and merges. Raises SpecprefillError for unknown rules of splitting."""
    algorithm, rules = value(reader, "tokenizer.ggml.model"), value(reader, "tokenizer.ggml.pre")
    if algorithm != "gpt2" or rules not in SPLITTERS:
        raise SpecprefillError(
            f"{file_name(reader)}: its tokenizer ({algorithm}, {rules}) cannot be converted; known are gpt2 with "
            f"{' and '.join(SPLITTERS)}"
        )
    tokens = value(reader, "tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in value(reader, "tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = SPLITTERS[rules]
    tokenizer.decoder = decoders.ByteLevel()
    types = value(reader, "tokenizer.ggml.token_type")
    added = ((token, type_) for token, type_ in zip(tokens, types, strict=True) if type_ in (CONTROL, USER_DEFINED))
    tokenizer.add_tokens([AddedToken(token, special=type_ == CONTROL, normalized=False) for token, type_ in added])
    return tokenizer


def tokenizer_config(reader: GGUFReader) -> dict[str, Any]:
    """What transformers stores beside a tokenizer: special tokens by role, the context, and the chat template."""
    tokens = value(reader, "tokenizer.ggml.tokens")
    roles = {role: tokens[value(reader, key)] for role, key in ROLES.items() if key in reader.fields}
    template = value(reader, "tokenizer.chat_template", "")
    return {
        # Any other class would replace the rules of splitting with its own.
        "tokenizer_class": "PreTrainedTokenizerFast",
        **roles,
        "clean_up_tokenization_spaces": False,
        "model_max_length": value(reader, "llama.context_length"),
        **({"chat_template": template} if template else {}),
    }

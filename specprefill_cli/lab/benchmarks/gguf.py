"""Writes GGUF files of the bundled models with 8-bit weights, so that llama.cpp and specprefill run the same weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.loaded import LoadedPair
from specprefill_cli.models.loading import load_model, stop_tokens
from specprefill_cli.models.machine.placement import Placement

# llama.cpp's name of the tokenizer's pre-tokenization pattern.
PRE_TOKENIZER = "qwen2"


def export_gguf(model: Path, out: Path) -> None:
    """Write a folder's Llama model (config.json, safetensors, tokenizer.json) to `out`: Q8_0, with norms in float32."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_name("specprefill tiny")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    add_tokenizer(writer, json.loads((model / "tokenizer.json").read_text(encoding="utf-8")), config)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, weight in load_file(model / "model.safetensors").items():
        weight = weight.astype(np.float32)
        projection = name.split(".")[-2]
        if projection in heads:
            weight = interleave_rows(weight, heads[projection])
        tensor_type = gguf.GGMLQuantizationType.F32 if weight.ndim == 1 else gguf.GGMLQuantizationType.Q8_0
        short_name = names.get_name(name, try_suffixes=(".weight",)) or name
        writer.add_tensor(short_name, gguf.quants.quantize(weight, tensor_type), raw_dtype=tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer: gguf.GGUFWriter, tokenizer: dict[str, Any], config: dict[str, Any]) -> None:
    """Add the vocabulary, merges and special tokens of a byte-level BPE tokenizer."""
    special = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    names = {number: token for token, number in {**tokenizer["model"]["vocab"], **special}.items()}
    tokens = [names.get(number, f"[unused{number}]") for number in range(config["vocab_size"])]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(PRE_TOKENIZER)
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in tokens])
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_add_bos_token(False)


def interleave_rows(weight: np.ndarray, heads: int) -> np.ndarray:
    """Reorder the rows of a query or key projection [rows, columns] for llama.cpp.

    Rotary embedding pairs neighbouring rows in llama.cpp, but the two halves of a head in transformers.
    """
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def load_gguf_target(pair: LoadedPair, file: Path, dtype: str) -> None:
    """Replace the pair's target by the model in a GGUF file, unpacked into `dtype`; keep the tokenizer.

    Raises SpecprefillError if the file is unreadable or holds another model than the pair's target.
    """
    outline = pair.target
    text_config = outline.config.get_text_config()
    loaded = load_model(str(file), Placement(None), dtype, offline=True)
    for size in ("vocab_size", "num_hidden_layers", "hidden_size"):
        actual, expected = getattr(loaded.config.get_text_config(), size), getattr(text_config, size)
        if actual != expected:
            raise SpecprefillError(
                f"{file}: not the model {outline.name} ({size} {actual}, not {expected}); give its file"
            )
    stops = stop_tokens(loaded.model, outline.tokenizer)
    pair.target = replace(loaded, tokenizer=outline.tokenizer, stop_tokens=stops)

"""Writes tiny random models of every architecture in GGUF files with byte pairs; llama as SmolLM2: tied, single digits."""

import json
from dataclasses import replace

import gguf
import numpy as np
import torch
import transformers
from gguf.quants import quantize
from tokenizers import pre_tokenizers

from specprefill_cli.models.sources.conversion import Conversion

HIDDEN, INNER, LAYERS, HEADS, KEY_VALUE_HEADS = 64, 96, 2, 4, 2
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["Ġ t", "h e", "Ġt he", "Ġ Ġ", "1 2", "' s", "o p"]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
Q8, Q4, F16, F32 = (getattr(gguf.GGMLQuantizationType, name) for name in ("Q8_0", "Q4_1", "F16", "F32"))


def vocabulary():
    """Special tokens, bytes, and merged tokens."""
    return [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]


def small_model(architecture, tokens, **sizes):
    """A random model of transformers, as the file's architecture has it."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        {"gemma3": "gemma3_text"}.get(architecture, architecture),
        **{
            "vocab_size": tokens,
            "hidden_size": HIDDEN,
            "intermediate_size": INNER,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KEY_VALUE_HEADS,
            "head_dim": HIDDEN // HEADS,
            "max_position_embeddings": 512,
            "rope_parameters": {"rope_type": "default", "rope_theta": 100_000.0},
            "rms_norm_eps": 1e-5,
            "sliding_window": 16,
            "pad_token_id": 2,
            "tie_word_embeddings": architecture in ("llama", "gemma3"),
            **({"query_pre_attn_scalar": HIDDEN // HEADS} if architecture == "gemma3" else {}),
            **sizes,
        },
    )
    if architecture == "gemma3":
        config.rope_parameters["sliding_attention"]["rope_theta"] = 10_000.0
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((0.5 if parameter.dim() == 1 else 0.1) * torch.randn(parameter.shape))
    return model


def write_gguf(
    path, *, architecture="llama", rules="smollm", tensor_types=(Q8, Q4), extra=None, model=None, tokenizer=None
):
    """Write the file. tensor_types: of the embedding and of the other matrices; extra: name of an additional tensor.

    tokenizer: byte pairs with special tokens at the end, in place of ours
    """
    tokens, special, merges, ids = vocabulary(), SPECIAL, MERGES, (1, 2, 2)
    if tokenizer is not None:
        tokens = tokenizer.convert_ids_to_tokens(range(model.config.vocab_size))
        special, ids = tokenizer.all_special_tokens, (tokenizer.bos_token_id, *[tokenizer.eos_token_id] * 2)
        merges = [" ".join(pair) for pair in json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]]
    model = model or small_model(architecture, len(tokens))
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if architecture in ("gemma3", "phi3"):
        writer.add_sliding_window(config.sliding_window)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(rules)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(ids[0])
    writer.add_eos_token_id(ids[1])
    writer.add_pad_token_id(ids[2])
    if tokenizer is None:
        writer.add_unk_token_id(0)
        writer.add_chat_template(TEMPLATE)
    names = gguf.get_tensor_name_map(
        next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture), config.num_hidden_layers
    )
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values, part = weight.float().numpy(), name.split(".")[-2]
        if architecture == "llama" and part in heads:
            values = interleave_rows(values, heads[part])
        if architecture == "gemma3" and name.endswith("norm.weight"):
            values = values + 1
        tensor_type = F32 if values.ndim == 1 else tensor_types[part != "embed_tokens"]
        name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(name, blocks(values, tensor_type), raw_dtype=tensor_type)
    if extra is not None:
        writer.add_tensor(extra, np.linspace(1, 4, HIDDEN // HEADS // 2, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def interleave_rows(weight, heads):
    """The rows of a query or key projection for llama.cpp: rotary embedding pairs neighbours there, halves in transformers."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def blocks(values, tensor_type):
    """Values in a type of block; random blocks of the types that the package only reads."""
    try:
        return quantize(values, tensor_type)
    except NotImplementedError:
        shape = gguf.quants.quant_shape_to_byte_shape(values.shape, tensor_type)
        # Bytes this small are finite numbers wherever a block has one of 16 bits.
        return np.random.default_rng(0).integers(0, 0x30, shape, dtype=np.uint8)


def converted(file, packed=False, adapter=None):
    """Convert a file, however small, and return the folder."""
    made = replace(Conversion.of(file, packed, adapter), packed=packed)
    made.convert(lambda _percent, _text: None)
    return made.folder

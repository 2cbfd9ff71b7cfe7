"""Writes a tiny random llama model in a GGUF file like SmolLM2's: tied embeddings, byte pairs, single digits."""

import hashlib

import gguf
import numpy as np
from gguf.quants import quantize
from tokenizers import pre_tokenizers

from specprefill_cli.models.conversion import Conversion

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


def write_gguf(path, *, architecture="llama", rules="smollm", tensor_types=(Q8, Q4), extra=None, seed=0):
    """Write the file. tensor_types: of the embedding and of the other matrices; extra: name of an additional tensor."""
    tokens = vocabulary()
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_VALUE_HEADS)
    writer.add_rope_freq_base(100_000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(rules)
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    random = np.random.default_rng(seed)

    def add_matrix(name, rows, columns, tensor_type):
        values = (random.standard_normal((rows, columns)) * 0.1).astype(np.float32)
        writer.add_tensor(name, quantize(values, tensor_type), raw_dtype=tensor_type)

    key_value = HIDDEN // HEADS * KEY_VALUE_HEADS
    add_matrix("token_embd.weight", len(tokens), HIDDEN, tensor_types[0])
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    for number in range(LAYERS):
        writer.add_tensor(f"blk.{number}.attn_norm.weight", random.uniform(0.5, 1.5, HIDDEN).astype(np.float32))
        writer.add_tensor(f"blk.{number}.ffn_norm.weight", random.uniform(0.5, 1.5, HIDDEN).astype(np.float32))
        for part, rows, columns in (
            ("attn_q", HIDDEN, HIDDEN),
            ("attn_k", key_value, HIDDEN),
            ("attn_v", key_value, HIDDEN),
            ("attn_output", HIDDEN, HIDDEN),
            ("ffn_gate", INNER, HIDDEN),
            ("ffn_up", INNER, HIDDEN),
            ("ffn_down", HIDDEN, INNER),
        ):
            add_matrix(f"blk.{number}.{part}.weight", rows, columns, tensor_types[1])
    if extra is not None:
        add_matrix(extra, HIDDEN, HIDDEN, F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def sha256_of(file):
    return hashlib.sha256(file.read_bytes()).hexdigest()


def conversion_of(file, **changes):
    fields = {"name": "small", "sha256": sha256_of(file), "adapter": None, "remedy": "install it again"}
    return Conversion(**fields | changes)


def converted(file, **changes):
    """Convert a file, and return the folder."""
    made = conversion_of(file, **changes)
    made.convert(file, lambda _percent, _text: None)
    return made.folder

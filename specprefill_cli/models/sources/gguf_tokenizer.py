"""The tokenizer of a GGUF file: byte pairs with their rules of splitting, or SentencePiece with scores."""

from collections.abc import Mapping
from typing import Any

from gguf import GGUFReader, TokenType
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers.tokenization_utils_base import generate_merges

from specprefill_cli.models.sources.gguf import refuse, value

BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
# The file's key for a special token's id, by the token's name in transformers' configuration.
ROLES: Mapping[str, str] = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}


def split_words(digits: str) -> pre_tokenizers.PreTokenizer:
    """The splitting that Qwen 2 and Llama 3 share. digits: how many stay together, as a pattern."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    words = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


# How text is split before byte pairs are merged, by the name of the rules in the file.
SPLITTERS = {
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTE_LEVEL]),
    "gpt-2": BYTE_LEVEL,
    "qwen2": split_words(r"\p{N}"),
    "llama-bpe": split_words(r"\p{N}{1,3}"),
    "dbrx": split_words(r"\p{N}{1,3}"),
}


def build_tokenizer(reader: GGUFReader) -> Tokenizer:
    """The tokenizer with the file's tokens. Raises SpecprefillError for an unknown algorithm or rules of splitting."""
    algorithm = value(reader, "tokenizer.ggml.model")
    if algorithm not in ("gpt2", "llama"):
        raise refuse(reader, f"its tokenizer ({algorithm}; known are gpt2 and llama)")
    tokenizer = byte_pairs(reader) if algorithm == "gpt2" else sentence_pieces(reader)
    tokens, types = value(reader, "tokenizer.ggml.tokens"), value(reader, "tokenizer.ggml.token_type")
    new = (pair for pair in zip(tokens, types, strict=True) if pair[1] in (TokenType.CONTROL, TokenType.USER_DEFINED))
    tokenizer.add_tokens([AddedToken(text, special=kind == TokenType.CONTROL, normalized=False) for text, kind in new])
    first = value(reader, "tokenizer.ggml.bos_token_id", -1)
    if first >= 0 and value(reader, "tokenizer.ggml.add_bos_token", algorithm == "llama"):
        token = tokens[first]
        single, special = f"{token} $A", [(token, first)]
        tokenizer.post_processor = processors.TemplateProcessing(single, pair=f"{single} $B", special_tokens=special)
    return tokenizer


def byte_pairs(reader: GGUFReader) -> Tokenizer:
    """A tokenizer that merges pairs of bytes, as GPT-2's."""
    rules = value(reader, "tokenizer.ggml.pre", "gpt-2")
    if rules not in SPLITTERS:
        raise refuse(reader, f"its tokenizer (rules {rules}; known are {', '.join(SPLITTERS)})")
    vocabulary = {token: number for number, token in enumerate(value(reader, "tokenizer.ggml.tokens"))}
    merges = [tuple(merge.split(" ")) for merge in value(reader, "tokenizer.ggml.merges")]
    # Llama 3 takes a word of the vocabulary whole, whatever its merges.
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=rules == "llama-bpe"))
    if rules == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = SPLITTERS[rules]
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def sentence_pieces(reader: GGUFReader) -> Tokenizer:
    """A tokenizer of SentencePiece's kind: two pieces merge where the vocabulary has both together, the best score first."""
    tokens, scores = value(reader, "tokenizer.ggml.tokens"), value(reader, "tokenizer.ggml.scores")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    merges = generate_merges(vocabulary, dict(zip(tokens, scores, strict=True)))
    unknown = tokens[value(reader, "tokenizer.ggml.unknown_token_id", 0)]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    has_prefix = value(reader, "tokenizer.ggml.add_space_prefix", True)
    prefix = [normalizers.Prepend(SPACE)] if has_prefix else []
    strip = [decoders.Strip(" ", 1, 0)] if has_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", SPACE)])
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def tokenizer_config(reader: GGUFReader) -> dict[str, Any]:
    """What transformers stores beside a tokenizer: special tokens by role, the context, and the chat template."""
    tokens, architecture = value(reader, "tokenizer.ggml.tokens"), value(reader, "general.architecture")
    roles = {role: tokens[value(reader, key)] for role, key in ROLES.items() if key in reader.fields}
    template = value(reader, "tokenizer.chat_template", "")
    return {
        # Any other class would replace the rules of splitting with its own.
        "tokenizer_class": "PreTrainedTokenizerFast",
        **roles,
        "clean_up_tokenization_spaces": False,
        "model_max_length": value(reader, f"{architecture}.context_length"),
        **({"chat_template": template} if template else {}),
    }

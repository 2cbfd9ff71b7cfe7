"""The tokenizer of a GGUF file, by the rules of the model that the file names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.gguf_weights import file_name, value

if TYPE_CHECKING:
    from gguf import GGUFReader

CONTROL, USER_DEFINED = 3, 4


def byte_level() -> PreTokenizer:
    """Splits text by GPT-2's pattern."""
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def single_digits() -> PreTokenizer:
    """Splits text by GPT-2's pattern, and every digit off."""
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level()])


# By the name of the rules in the file: how text is split before byte pairs are merged.
SPLITTERS = {"smollm": single_digits, "gpt-2": byte_level}
# By the names in transformers' configuration: where the file has a token's id.
ROLES: Mapping[str, str] = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}


def build_tokenizer(reader: GGUFReader) -> Tokenizer:
    """The tokenizer with the file's tokens and merges. Raises SpecprefillError for rules that are not known here."""
    kind, rules = value(reader, "tokenizer.ggml.model"), value(reader, "tokenizer.ggml.pre")
    if kind != "gpt2" or rules not in SPLITTERS:
        raise SpecprefillError(
            f"{file_name(reader)}: its tokenizer ({kind}, {rules}) cannot be converted; known are gpt2 with "
            f"{' and '.join(SPLITTERS)}"
        )
    tokens = value(reader, "tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in value(reader, "tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = SPLITTERS[rules]()
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
        # Any other class would replace the rules of splitting by its own.
        "tokenizer_class": "PreTrainedTokenizerFast",
        **roles,
        "clean_up_tokenization_spaces": False,
        "model_max_length": value(reader, "llama.context_length"),
        **({"chat_template": template} if template else {}),
    }

"""Byte-level BPE with Qwen2's splitting pattern, exported for transformers and, with the same ids, for tiktoken."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers.convert_slow_tokenizer import bytes_to_unicode

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.sources.tokenizers import SPLIT_PATTERN

BOS, EOS, PAD = "<|bos|>", "<|eos|>", "<|pad|>"
SPECIAL_TOKENS = (BOS, EOS, PAD)


def train_tokenizer(texts: Iterator[str], vocabulary: int) -> Tokenizer:
    """Train the BPE on texts; the special tokens take the last ids of the vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def tiktoken_ranks(tokenizer: Tokenizer) -> dict[bytes, int]:
    """The bytes of each mergeable token, with its id as rank: tiktoken merges by rank, and ids are in merge order."""
    # The printable character that stands for each byte in a byte-level vocabulary.
    alphabet = {character: byte for byte, character in bytes_to_unicode().items()}
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    return {
        bytes(alphabet[character] for character in token): number
        for token, number in sorted(vocabulary.items(), key=lambda item: item[1])
        if token not in SPECIAL_TOKENS
    }


def save_tokenizer(tokenizer: Tokenizer, folder: Path, context: int) -> None:
    """Write tokenizer.json, tokenizer_config.json and tokenizer.tiktoken (base64 bytes, a blank, the id)."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    lines = [f"{base64.b64encode(token).decode()} {rank}" for token, rank in tiktoken_ranks(tokenizer).items()]
    (folder / "tokenizer.tiktoken").write_text("\n".join(lines) + "\n", encoding="ascii")


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load a tokenizer that `save_tokenizer` wrote."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of a special token. Raises SpecprefillError for a tokenizer without it."""
    number = tokenizer.token_to_id(token)
    if number is None:
        raise SpecprefillError(f"the tokenizer has no {token}; make one with the step `tokenizer`")
    return number

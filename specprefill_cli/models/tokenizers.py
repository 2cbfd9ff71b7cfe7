"""Tokenizers: counting with the shipped tiktoken ranks, encoding untrusted text, comparing two of them."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from specprefill_cli.errors import SpecprefillError

if TYPE_CHECKING:
    import tiktoken
    from transformers import PreTrainedTokenizerBase

# The splitting pattern of the Qwen2 tokenizers, which transformers, tiktoken and llama.cpp all know; it splits digits.
# The bundled tokenizer was trained with it.
SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
RANKS = Path(__file__).resolve().parent.parent / "bundled" / "tiny" / "tokenizer.tiktoken"


@lru_cache(maxsize=1)
def counting_encoding() -> tiktoken.Encoding:
    """tiktoken with the ranks that ship with the package: nothing is downloaded."""
    import base64

    import tiktoken

    lines = RANKS.read_text(encoding="ascii").splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines)}
    return tiktoken.Encoding("specprefill-tiny", pat_str=SPLIT_PATTERN, mergeable_ranks=ranks, special_tokens={})


def count_tokens(text: str) -> int:
    """Tokens of a text for the bundled pair (exactly), and a fair estimate for other tokenizers; loads no model."""
    return len(counting_encoding().encode_ordinary(text))


def encode_text(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[list[int], np.ndarray]:
    """Token ids and character ranges [n, 2] of a text in which special tokens mean nothing: it is data."""
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, split_special_tokens=True)
    return encoded["input_ids"], np.array(encoded["offset_mapping"], dtype=np.int64).reshape(-1, 2)


def encode_template(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Token ids of a piece of a template, in which special tokens do count."""
    return tokenizer(text, add_special_tokens=False)["input_ids"] if text else []


def fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """A hash of all that decides how text becomes ids: equal for two tokenizers that can share ids and KV."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    # Truncation and padding are settings of a call, not of the vocabulary.
    deciding = {key: state.get(key) for key in ("normalizer", "pre_tokenizer", "model", "added_tokens")}
    return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()


def check_fast(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Raises SpecprefillError for a tokenizer that cannot give character offsets."""
    if not getattr(tokenizer, "is_fast", False):
        raise SpecprefillError(
            f"{name}: its tokenizer gives no character offsets (not a 'fast' tokenizer); "
            "use a checkpoint that has a tokenizer.json"
        )

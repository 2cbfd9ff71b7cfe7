"""Tokenizers: counting with the shipped tiktoken ranks, encoding untrusted text, comparing tokenizers."""

import hashlib
import json
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from specprefill_cli.files import BUNDLED_FOLDER
from specprefill_cli.models.sources.refs import Kind, ModelRef

if TYPE_CHECKING:
    import tiktoken

# The split pattern of Qwen2 and of the bundled tokenizer: transformers, tiktoken and llama.cpp know it.
SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ANCHOR = "\n"


@lru_cache(maxsize=1)
def counting_encoding() -> "tiktoken.Encoding":
    """The bundled tokenizer as a tiktoken encoding, from ranks that ship with the package."""
    import base64

    import tiktoken

    lines = (BUNDLED_FOLDER / "tokenizer.tiktoken").read_text(encoding="ascii").splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines)}
    return tiktoken.Encoding("specprefill-tiny", pat_str=SPLIT_PATTERN, mergeable_ranks=ranks, special_tokens={})


def count_tokens(text: str) -> int:
    """Tokens of a text for the bundled pair, and an estimate for other tokenizers."""
    return len(counting_encoding().encode_ordinary(text))


def encode_text(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[list[int], np.ndarray]:
    """Token ids and character ranges [n, 2] of a text that is data: special tokens in it are mere text."""
    encoder, anchor = data_encoder(tokenizer), anchor_tokens(tokenizer)
    if anchor:
        ids, offsets = encode_whole(encoder, ANCHOR + text)
        if ids[: len(anchor)] == anchor:
            return ids[len(anchor) :], (offsets[len(anchor) :] - len(ANCHOR)).clip(min=0)
    return encode_whole(encoder, text)


def encode_whole(encoder: Tokenizer, text: str) -> tuple[list[int], np.ndarray]:
    """Token ids and character ranges [n, 2] of a text, without special tokens."""
    # Unlike `encode`, this call lets other threads run.
    (encoding,) = encoder.encode_batch([text], add_special_tokens=False)
    flat = np.fromiter(chain.from_iterable(encoding.offsets), dtype=np.int64, count=2 * len(encoding))
    return encoding.ids, flat.reshape(-1, 2)


@lru_cache(maxsize=8)
def data_encoder(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """The tokenizer without its added tokens: it reads them as text, even those not special (`<think>`)."""
    original = tokenizer.backend_tokenizer
    # The model is shared: only its added tokens stay behind.
    encoder = Tokenizer(original.model)
    for part in ("normalizer", "pre_tokenizer", "post_processor"):
        setattr(encoder, part, getattr(original, part))
    return encoder


@lru_cache(maxsize=8)
def anchor_tokens(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Ids of the anchor for a tokenizer that puts a space before every text (Llama 2, Phi-3), else none.

    A piece of a prompt is encoded after the anchor, whose tokens are removed, so that no space is added.
    """
    encoder = data_encoder(tokenizer)
    plain, anchor, anchored = (encode_whole(encoder, text)[0] for text in ("x", ANCHOR, ANCHOR + "x"))
    return anchor if anchored[: len(anchor)] == anchor and anchored[len(anchor) :] != plain else []


def encode_template(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Token ids of a piece of a template: here special tokens keep their meaning."""
    anchor = anchor_tokens(tokenizer)
    # `verbose=False`: transformers would warn about long texts; `check_fits` does that.
    ids = tokenizer(ANCHOR + text if anchor else text, add_special_tokens=False, verbose=False)["input_ids"]
    if ids[: len(anchor)] == anchor:
        return ids[len(anchor) :]
    return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


@lru_cache(maxsize=8)
def fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """A hash of all that maps text to ids: if it is equal for two models, they can share ids and KV."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    deciding = {key: state.get(key) for key in ("normalizer", "pre_tokenizer", "model", "added_tokens")}
    return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()


def agreed_tokenizer(
    target: str, target_tokenizer: PreTrainedTokenizerBase, draft_tokenizer: PreTrainedTokenizerBase
) -> PreTrainedTokenizerBase:
    """The tokenizer of a target: its own, but for a GGUF file the draft's, where they differ in form alone."""
    own, others = target_tokenizer.get_vocab(), draft_tokenizer.get_vocab()
    is_shared = others.items() <= own.items() and target_tokenizer.get_added_vocab().keys() <= others.keys()
    return draft_tokenizer if ModelRef(target).kind in (Kind.FILE, Kind.HUB_FILE) and is_shared else target_tokenizer

"""Tokenising a long text on all cores: in pieces that begin at lines, where the tokenizer certainly parts the text too.

Where every token is so many of the text's bytes, their ranges are counted here: the library takes longer to find them.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer
    from tokenizers.normalizers import Normalizer
    from tokenizers.pre_tokenizers import PreTokenizer
    from tokenizers.processors import PostProcessor

# What the patterns of Qwen, Llama 3, GPT-4 and their kin have in common: a line's end belongs to no word behind it.
LINE_ENDS = r"|\s*[\r\n]+|"
# Characters of a piece: long enough that starting one costs nothing, short enough that the cores end together.
PIECE = 4_096


def encode_in_pieces(encoder: Tokenizer, text: str, size: int = PIECE) -> tuple[list[int], np.ndarray]:
    """Token ids and character ranges [n, 2] of a text, the same as in one piece; no special tokens are added.

    The pieces are encoded at the same time, on as many cores as the library takes, where the tokenizer allows pieces.
    """
    starts = line_starts(text, size) if parts_at_lines(encoder) else [0]
    ends = [*starts[1:], len(text)]
    pieces = [text[start:end] for start, end in zip(starts, ends, strict=True)]
    lengths = token_bytes(encoder)
    if lengths is not None and (encoder.normalizer is None or unicodedata.is_normalized("NFC", text)):
        encodings = encoder.encode_batch_fast(pieces, add_special_tokens=False)
        ids = list(chain.from_iterable(encoding.ids for encoding in encodings))
        counted = character_ranges(text, lengths[ids])
        if counted is not None:
            return ids, counted
    encodings = encoder.encode_batch(pieces, add_special_tokens=False)
    offsets = [ranges(encoding) + start for encoding, start in zip(encodings, starts, strict=True)]
    return list(chain.from_iterable(encoding.ids for encoding in encodings)), np.concatenate(offsets)


def line_starts(text: str, size: int) -> Sequence[int]:
    """Where pieces of at least `size` characters begin: at 0, and at lines that begin with a letter."""
    starts = [0]
    place = text.find("\n", size)
    while place >= 0:
        if text[place + 1 : place + 2].isalpha():
            starts.append(place + 1)
            place += size
        place = text.find("\n", place + 1)
    return starts


@lru_cache(maxsize=8)
def parts_at_lines(encoder: Tokenizer) -> bool:
    """Whether a letter that begins a line always begins a word of the tokenizer, whatever stands before it.

    So it is with byte-level BPE behind one split at a pattern with LINE_ENDS. Others (a text as one word, a blank put
    before each text) might merge across lines.
    """
    steps = described(encoder.pre_tokenizer).get("pretokenizers", ())
    if [step["type"] for step in steps] != ["Split", "ByteLevel"]:
        return False
    split, bytewise = steps
    return (
        LINE_ENDS in split["pattern"].get("Regex", "")
        and split["behavior"] == "Isolated"
        and not split["invert"]
        and not bytewise["add_prefix_space"]
        and not bytewise["use_regex"]
        and described(encoder.normalizer).get("type", "NFC") == "NFC"
    )


@lru_cache(maxsize=8)
def token_bytes(encoder: Tokenizer) -> np.ndarray | None:
    """How many bytes of text each id stands for; None where tokens are not just a text's bytes, one after the other.

    Byte-level BPE writes one character for each byte. What a tokenizer puts round the tokens, or takes off their ranges,
    is its post-processor.
    """
    model = encoder.model
    if not (isinstance(model, BPE) and parts_at_lines(encoder)) or trims_ranges(encoder):
        return None
    vocabulary = encoder.get_vocab(with_added_tokens=False)
    others = model.byte_fallback or model.continuing_subword_prefix or model.end_of_word_suffix
    if others or not set(ByteLevel.alphabet()) <= vocabulary.keys():
        return None
    lengths = np.zeros(max(vocabulary.values()) + 1, dtype=np.int64)
    lengths[list(vocabulary.values())] = [len(token) for token in vocabulary]
    return lengths


def trims_ranges(encoder: Tokenizer) -> bool:
    """Whether the post-processor leaves blanks out of the ranges of tokens."""
    last = described(encoder.post_processor)
    return any(step.get("trim_offsets", False) for step in (last, *last.get("processors", ())))


def character_ranges(text: str, lengths: np.ndarray) -> np.ndarray | None:
    """Character ranges [n, 2] of tokens that stand for `lengths` [n] bytes each of a text in UTF-8.

    Tokens that part a character share its range. None where the text has more or fewer bytes than the tokens: then they
    are not its bytes.
    """
    encoded = text.encode()
    if lengths.sum() != len(encoded):
        return None
    ends = lengths.cumsum()
    ranges = np.stack([ends - lengths, ends], axis=1)
    if text.isascii():
        return ranges
    follows = (np.frombuffer(encoded, dtype=np.uint8) & 0xC0) == 0x80
    # Character of each byte.
    place = np.cumsum(~follows) - 1
    return np.stack([place[ranges[:, 0]], place[ranges[:, 1] - 1] + 1], axis=1)


def described(part: Normalizer | PreTokenizer | PostProcessor | None) -> dict[str, Any]:
    """A part of a tokenizer as its file says it; the state that it is pickled by is that JSON."""
    return {} if part is None else json.loads(part.__getstate__())


def ranges(encoding: Encoding) -> np.ndarray:
    """Character ranges [n, 2] of the tokens of an encoding."""
    flat = np.fromiter(chain.from_iterable(encoding.offsets), dtype=np.int64, count=2 * len(encoding))
    return flat.reshape(-1, 2)

"""Tokenising a long text on all cores, in pieces that begin where the tokenizer certainly splits the text too.

This saves 5 % of the TTFT of `select --keep 0.1` at 8,192 tokens, and more on longer prompts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer
    from tokenizers.normalizers import Normalizer
    from tokenizers.pre_tokenizers import PreTokenizer

# What the patterns of Qwen, Llama 3 and GPT-4 have in common: the end of a line is never part of the word behind it.
LINE_ENDS = r"|\s*[\r\n]+|"
# Characters of a piece: long enough that starting one costs nothing, short enough that the cores finish together.
PIECE_SIZE = 4_096
# Pieces encoded in one call: the library's result takes several times the memory of ids and ranges.
BATCH = 256


def encode_in_pieces(encoder: Tokenizer, text: str, size: int = PIECE_SIZE) -> tuple[list[int], np.ndarray]:
    """Token ids and character ranges [n, 2] of a text, the same as in one piece; no special tokens are added.

    The library encodes the pieces in parallel. A tokenizer that could merge across lines gets the text whole.
    """
    starts = piece_starts(text, size) if splits_at_lines(encoder) else [0]
    ends = [*starts[1:], len(text)]
    ids: list[int] = []
    offsets = []
    for first in range(0, len(starts), BATCH):
        batch = slice(first, first + BATCH)
        pieces = [text[start:end] for start, end in zip(starts[batch], ends[batch], strict=True)]
        for encoding, start in zip(encoder.encode_batch(pieces, add_special_tokens=False), starts[batch], strict=True):
            ids += encoding.ids
            offsets.append(character_ranges(encoding) + start)
    return ids, np.concatenate(offsets)


def piece_starts(text: str, size: int) -> Sequence[int]:
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
def splits_at_lines(encoder: Tokenizer) -> bool:
    """Whether a letter that begins a line always begins a word of the tokenizer, whatever stands before it.

    So it is with byte-level BPE behind one split at a pattern with LINE_ENDS. Others (a text as one word, a space put
    before each text) might merge across lines.
    """
    steps = parsed_state(encoder.pre_tokenizer).get("pretokenizers", ())
    if [step["type"] for step in steps] != ["Split", "ByteLevel"]:
        return False
    split, byte_level = steps
    return (
        LINE_ENDS in split["pattern"].get("Regex", "")
        and split["behavior"] == "Isolated"
        and not split["invert"]
        and not byte_level["add_prefix_space"]
        and not byte_level["use_regex"]
        and parsed_state(encoder.normalizer).get("type", "NFC") == "NFC"
    )


def parsed_state(part: Normalizer | PreTokenizer | None) -> dict[str, Any]:
    """A part of a tokenizer as its file describes it: the state that it is pickled by is that JSON."""
    return {} if part is None else json.loads(part.__getstate__())


def character_ranges(encoding: Encoding) -> np.ndarray:
    """Character ranges [n, 2] of the tokens of an encoding."""
    flat = np.fromiter(chain.from_iterable(encoding.offsets), dtype=np.int64, count=2 * len(encoding))
    return flat.reshape(-1, 2)

"""Tokenising a long text on all cores: in pieces that begin at lines, where the tokenizer certainly parts the text too."""

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
    encodings = encoder.encode_batch(
        [text[start:end] for start, end in zip(starts, ends, strict=True)], add_special_tokens=False
    )
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


def described(part: Normalizer | PreTokenizer | None) -> dict[str, Any]:
    """A tokenizer's normalizer or pre-tokenizer as its file says it; the state that it is pickled by is that JSON."""
    return {} if part is None else json.loads(part.__getstate__())


def ranges(encoding: Encoding) -> np.ndarray:
    """Character ranges [n, 2] of the tokens of an encoding."""
    flat = np.fromiter(chain.from_iterable(encoding.offsets), dtype=np.int64, count=2 * len(encoding))
    return flat.reshape(-1, 2)

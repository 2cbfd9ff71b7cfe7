"""A text in pieces gives the same tokens as the whole text, for every family of tokenizers that is cut."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from specprefill_cli.models.parallel_encoding import (
    character_ranges,
    encode_in_pieces,
    line_starts,
    parts_at_lines,
    token_bytes,
)
from specprefill_cli.models.tokenizers import SPLIT_PATTERN

PATTERNS = {
    "qwen2": SPLIT_PATTERN,
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
SAMPLE = "The gate\nis open.\n\nNine to five\r\non 12 days:\n  a/b\n/c\n\u00c9t\u00e9 \U0001f980\n"


def byte_level(pattern):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator([SAMPLE] * 20, trainer)
    return tokenizer


@pytest.fixture(scope="module")
def families():
    return {name: byte_level(pattern) for name, pattern in PATTERNS.items()}


@given(
    st.lists(st.sampled_from([*"aZ7 /.\n\r\t\u00e9\u0301\U0001f980", "\n\n", "open\n", "'s"]), max_size=60).map("".join)
)
def test_pieces_give_the_tokens_of_the_whole(families, text):
    for tokenizer in families.values():
        assert parts_at_lines(tokenizer)
        assert token_bytes(tokenizer) is not None
        whole = tokenizer.encode(text, add_special_tokens=False)
        ids, offsets = encode_in_pieces(tokenizer, text, 2)
        assert ids == whole.ids
        assert offsets.tolist() == [list(one) for one in whole.offsets]


def test_text_that_the_tokenizer_changes_has_its_ranges(families):
    """NFC makes one character of two, and two of one (a Devanagari letter): bytes of tokens are not those of the text."""
    text = "e\u0301 \u0958 \u0344 \u212a\n"
    whole = families["qwen2"].encode(text, add_special_tokens=False)
    ids, offsets = encode_in_pieces(families["qwen2"], text)
    assert (ids, offsets.tolist()) == (whole.ids, [list(one) for one in whole.offsets])


@pytest.mark.parametrize(
    "processor",
    [
        processors.ByteLevel(trim_offsets=True),
        processors.Sequence([processors.ByteLevel(trim_offsets=True)]),
        processors.ByteLevel(trim_offsets=False),
    ],
)
def test_ranges_are_those_of_the_post_processor(processor):
    tokenizer = byte_level(SPLIT_PATTERN)
    tokenizer.post_processor = processor
    trims = "true" in str(processor.__getstate__()).split("trim_offsets")[1][:8]
    assert (token_bytes(tokenizer) is None) == trims
    whole = tokenizer.encode(SAMPLE, add_special_tokens=False)
    ids, offsets = encode_in_pieces(tokenizer, SAMPLE)
    assert (ids, offsets.tolist()) == (whole.ids, [list(one) for one in whole.offsets])


def test_tokens_that_are_not_the_texts_bytes_get_no_ranges():
    assert character_ranges("gate", np.array([1, 3])).tolist() == [[0, 1], [1, 4]]
    assert character_ranges("\u00e9", np.array([1, 1])).tolist() == [[0, 1], [0, 1]]
    assert character_ranges("", np.array([], dtype=np.int64)).tolist() == []
    assert character_ranges("gate", np.array([1, 2])) is None


def test_bytes_are_not_counted_where_tokens_are_more_than_bytes():
    words = byte_level(SPLIT_PATTERN)
    words.model = models.WordLevel({"gate": 0}, unk_token="gate")
    lacking = byte_level(SPLIT_PATTERN)
    lacking.model = models.BPE({"a": 0, "b": 1}, [])
    marked = byte_level(SPLIT_PATTERN)
    marked.model = models.BPE(marked.get_vocab(), [], end_of_word_suffix="</w>")
    for tokenizer in (words, lacking, marked):
        assert parts_at_lines(tokenizer)
        assert token_bytes(tokenizer) is None


def test_long_texts_are_cut_and_short_ones_are_not(tokenizer):
    rng = random.Random(5)
    words = ["open ", "9 ", "gate\n", "\n", " fee, ", "\u00fcber\n\n"]
    text = "".join(rng.choice(words) for _ in range(5_000))
    assert len(line_starts(text, 1_000)) > 10
    assert line_starts(text[:900], 1_000) == [0]
    assert line_starts("no lines " * 1_000, 1_000) == [0]
    whole = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
    ids, offsets = encode_in_pieces(tokenizer.backend_tokenizer, text, 1_000)
    assert ids == whole.ids
    assert np.array_equal(offsets, np.array(whole.offsets))


@pytest.mark.parametrize(
    "pre_tokenizer",
    [
        None,
        pre_tokenizers.Metaspace(),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        pre_tokenizers.Sequence([pre_tokenizers.Digits(), pre_tokenizers.ByteLevel(add_prefix_space=False)]),
        pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(SPLIT_PATTERN), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=True)]
        ),
    ],
)
def test_other_tokenizers_read_the_text_whole(pre_tokenizer):
    tokenizer = Tokenizer(models.BPE())
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    assert not parts_at_lines(tokenizer)

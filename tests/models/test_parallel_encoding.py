"""A text encoded in pieces has the same tokens as the whole text, for every tokenizer family that can be split."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from specprefill_cli.models.tokenizers import SPLIT_PATTERN, encode_in_pieces, piece_starts, splits_at_lines

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
def test_pieces_give_the_same_tokens_as_the_whole_text(families, text):
    for tokenizer in families.values():
        assert splits_at_lines(tokenizer)
        unsplit = tokenizer.encode(text, add_special_tokens=False)
        ids, offsets = encode_in_pieces(tokenizer, text, 2)
        assert ids == unsplit.ids
        assert offsets.tolist() == [list(pair) for pair in unsplit.offsets]


def test_pieces_are_correct_when_normalisation_changes_the_text(families):
    """NFC merges two characters into one, and splits one (a Devanagari letter) into two."""
    text = "e\u0301 \u0958 \u0344 \u212a\n"
    unsplit = families["qwen2"].encode(text, add_special_tokens=False)
    ids, offsets = encode_in_pieces(families["qwen2"], text)
    assert (ids, offsets.tolist()) == (unsplit.ids, [list(pair) for pair in unsplit.offsets])


def test_splits_only_long_texts(tokenizer):
    rng = random.Random(5)
    words = ["open ", "9 ", "gate\n", "\n", " fee, ", "\u00fcber\n\n"]
    text = "".join(rng.choice(words) for _ in range(5_000))
    assert len(piece_starts(text, 1_000)) > 10
    assert piece_starts(text[:900], 1_000) == [0]
    assert piece_starts("no lines " * 1_000, 1_000) == [0]
    unsplit = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
    ids, offsets = encode_in_pieces(tokenizer.backend_tokenizer, text, 1_000)
    assert ids == unsplit.ids
    assert np.array_equal(offsets, np.array(unsplit.offsets))


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
def test_other_tokenizers_are_not_split(pre_tokenizer):
    tokenizer = Tokenizer(models.BPE())
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    assert not splits_at_lines(tokenizer)

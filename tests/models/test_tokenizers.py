"""Untrusted text, tokenizers that prepend a space, and text encoded in pieces: the same tokens as in one piece."""

import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from specprefill_cli.models.sources.tokenizers import (
    SPLIT_PATTERN,
    anchor_tokens,
    encode_in_pieces,
    encode_template,
    encode_text,
    piece_starts,
    splits_at_lines,
)
from specprefill_cli.prompting import Template, encode_prompt

PATTERNS = {
    "qwen2": SPLIT_PATTERN,
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
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
    st.lists(
        # Normalisation makes one character of two, and two of a Devanagari letter.
        st.sampled_from([*"aZ7 /.\n\r\t\u00e9e\u0301\u0958\u0344\u212a\U0001f980", "\n\n", "open\n", "'s"]),
        max_size=60,
    ).map("".join)
)
def test_pieces_give_the_same_tokens_as_the_whole_text(families, text):
    for tokenizer in families.values():
        assert splits_at_lines(tokenizer)
        unsplit = tokenizer.encode(text, add_special_tokens=False)
        ids, offsets = encode_in_pieces(tokenizer, text, 2)
        assert ids == unsplit.ids
        assert offsets.tolist() == [list(pair) for pair in unsplit.offsets]


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


@pytest.mark.parametrize("pre_tokenizer", [
    None, pre_tokenizers.Metaspace(), BYTES, pre_tokenizers.Sequence([pre_tokenizers.Digits(), BYTES]),
    pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(SPLIT_PATTERN), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=True)]
    ),
])  # fmt: skip
def test_other_tokenizers_are_not_split(pre_tokenizer):
    tokenizer = Tokenizer(models.BPE())
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    assert not splits_at_lines(tokenizer)


@pytest.fixture(scope="module")
def space_adding():
    """A tokenizer that prepends a space to every text, as Llama 2's does."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(vocab_size=300, show_progress=False)
    tokenizer.train_from_iterator(["What is the fee? The fee is four euros. Question: Answer:", "\n"] * 50, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_prompt_parts_join_without_extra_spaces(space_adding, tokenizer):
    assert anchor_tokens(space_adding)
    assert anchor_tokens(tokenizer) == []
    template = Template("plain", "Question:$document\nQuestion: $question\nAnswer:", None, None)
    document = "The fee is four euros."
    prompt = encode_prompt(template, document, "What is the fee?", space_adding)
    joined = space_adding.convert_ids_to_tokens(prompt.tokens.tolist())
    expected = f"Question:{document}\nQuestion: What is the fee?\nAnswer:"
    assert "".join(joined).replace("\u2581", " ") == expected
    _, offsets = encode_text(space_adding, document)
    assert (offsets[0, 0], offsets[-1, 1]) == (0, len(document))
    assert encode_template(space_adding, "") == []


def test_non_special_added_tokens_in_text_are_encoded_as_text(tokenizer):
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    token_id = len(tokenizer)
    state["added_tokens"].append(state["added_tokens"][0] | {"id": token_id, "content": "<think>", "special": False})
    extended = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(state)))
    assert encode_template(extended, "a<think>b").count(token_id) == 1
    ids, offsets = encode_text(extended, "a<think>b")
    assert token_id not in ids
    assert extended.decode(ids) == "a<think>b"
    assert offsets[-1, 1] == len("a<think>b")

"""Untrusted text, tokenizers that add blanks, and counting."""

import json

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from specprefill_cli.models.tokenizers import anchor_tokens, encode_template, encode_text, fingerprint
from specprefill_cli.prompting import PromptText, encode_prompt


@pytest.fixture(scope="module")
def blank_adding():
    """A tokenizer in the manner of Llama 2: each text gets a blank before it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(vocab_size=300, show_progress=False)
    tokenizer.train_from_iterator(["What is the fee? The fee is four euros. Question: Answer:", "\n"] * 50, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_pieces_of_a_prompt_join_without_stray_blanks(blank_adding):
    assert anchor_tokens(blank_adding)
    text = PromptText("Question:", "The fee is four euros.", "\nQuestion:", " What is the fee?", "\nAnswer:")
    prompt = encode_prompt(text, blank_adding)
    whole = blank_adding.convert_ids_to_tokens(prompt.tokens.tolist())
    expected = text.prefix + text.document + text.before_question + text.question + text.suffix
    assert "".join(whole).replace("\u2581", " ") == expected
    _, offsets = encode_text(blank_adding, text.document)
    assert (offsets[0, 0], offsets[-1, 1]) == (0, len(text.document))
    assert encode_template(blank_adding, "") == []


def test_byte_level_tokenizers_need_no_anchor(tokenizer):
    assert anchor_tokens(tokenizer) == []


def test_added_tokens_that_are_not_special_are_text_too(tokenizer):
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    number = len(tokenizer)
    state["added_tokens"].append(state["added_tokens"][0] | {"id": number, "content": "<think>", "special": False})
    other = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(state)))
    assert encode_template(other, "a<think>b").count(number) == 1
    ids, offsets = encode_text(other, "a<think>b")
    assert number not in ids
    assert other.decode(ids) == "a<think>b"
    assert offsets[-1, 1] == len("a<think>b")


def test_fingerprints_differ_where_ids_would(tokenizer, blank_adding):
    assert fingerprint(tokenizer) != fingerprint(blank_adding)

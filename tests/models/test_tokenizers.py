"""Untrusted text, and tokenizers that prepend a space."""

import json

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from specprefill_cli.models.sources.tokenizers import anchor_tokens, encode_template, encode_text
from specprefill_cli.prompting import Template, encode_prompt


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


def test_context_is_data_between_document_and_question(tokenizer):
    special = tokenizer.eos_token
    template = Template("plain", "$document\n\n$question", None, None, context=f"\n\nEarlier: {special}")
    prompt = encode_prompt(template, "The fee is four euros.", "Which?", tokenizer)
    assert tokenizer.decode(prompt.tokens[slice(*prompt.question)]) == "Which?"
    assert f"Earlier: {special}" in tokenizer.decode(prompt.tokens)
    assert tokenizer.eos_token_id not in prompt.tokens


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

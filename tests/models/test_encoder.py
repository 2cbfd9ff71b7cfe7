"""The sentence encoder: the same states as transformers' BERT, stretches that divide a text, vectors that mean something."""

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models import encoder as module
from specprefill_cli.models.encoder import (
    HEADS,
    LAYERS,
    OVERLAP,
    STRETCH,
    TOKEN_WIDTH,
    WIDTH,
    DocumentVectors,
    QuestionVectors,
    divide,
)
from specprefill_cli.models.encoder_files import load_encoder, unpack_weights
from specprefill_cli.training.encoder import packed, rename_weights


@pytest.fixture
def encoder(processor_dtype):
    loaded = load_encoder("cpu")
    assert loaded.weights["positions"].dtype is getattr(torch, processor_dtype)
    return loaded


def test_states_are_those_of_transformers():
    torch.manual_seed(0)
    sizes = {"hidden_size": WIDTH, "intermediate_size": 4 * WIDTH}
    config = BertConfig(vocab_size=50, num_hidden_layers=LAYERS, num_attention_heads=HEADS, **sizes)
    model = BertModel(config, add_pooling_layer=False).eval()
    ours = module.Encoder(rename_weights(model.state_dict()), tokenizer=None)
    ids = torch.randint(0, 50, (2, 40))
    with torch.no_grad():
        expected = model(input_ids=ids).last_hidden_state
        torch.testing.assert_close(ours.states(ids), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("tokens", [0, 1, 100, STRETCH - 2, STRETCH - 1, 700, 5_000])
def test_stretches_of_one_size_divide_a_text(tokens):
    stretches = divide(tokens)
    assert [place for read, kept in stretches for place in range(tokens)[read][kept]] == list(range(tokens))
    assert len({read.stop - read.start for read, _ in stretches}) <= 1
    for number, (read, kept) in enumerate(stretches):
        # What is read at an inner edge has text beside it.
        assert kept.start >= (OVERLAP // 2 if number else 0)
        assert read.stop - read.start - kept.stop >= (OVERLAP // 2 if number + 1 < len(stretches) else 0)


def test_packed_weights_are_near_the_original():
    weight = torch.randn(8, 64) * torch.logspace(-3, 1, 8)[:, None]
    restored = unpack_weights(packed({"a": weight, "words": weight, "b": weight[0]}), torch.float32)
    assert set(restored) == {"a", "words", "words.scale", "b"}
    largest = weight.abs().amax(1, keepdim=True)
    assert ((restored["a"] - weight).abs() <= largest / 127).all()
    words = module.Encoder(restored | {"positions": weight}, tokenizer=None).embedded(torch.arange(8)[None])[0]
    assert ((words - weight).abs() <= largest / 13).all()
    torch.testing.assert_close(restored["b"], weight[0], rtol=1e-3, atol=1e-5)


def vectors_of(**vectors):
    """Unit vectors from whole numbers."""
    return {name: torch.nn.functional.normalize(torch.tensor(rows).float(), dim=-1) for name, rows in vectors.items()}


def test_other_words_for_the_same_are_nearer_than_other_things(encoder):
    question = encoder.question_vectors("How long can I send it back for?").whole
    same, unrelated = (
        encoder.question_vectors(text).whole
        for text in ("Returns are accepted within 30 days.", "The pump needs oil every year.")
    )
    assert question @ same > question @ unrelated + 0.1


def test_similarity_adds_the_chunk_s_cosine_and_the_mean_of_the_best_matches():
    document = DocumentVectors(
        **vectors_of(chunks=[[1, 0], [0, 1], [3, 4]], tokens=[[1, 0], [0, 1], [0, 1], [1, 1]]),
        chunk_of=torch.tensor([0, 0, 1, 2]),
        token_starts=torch.tensor([0, 5, 9, 12]),
    )
    question = QuestionVectors(**vectors_of(whole=[1, 0], tokens=[[1, 0], [0, 1]]))
    half = 0.5**0.5
    expected = torch.tensor([1 + (1 + 1) / 2, 0 + (0 + 1) / 2, 0.6 + (half + half) / 2])
    torch.testing.assert_close(document.chunk_similarity(question), expected)
    # Sentences that begin at characters 0 and 6: the first has the first two tokens.
    sentences = document.sentence_similarity(question, np.array([0, 6]))
    torch.testing.assert_close(sentences, torch.tensor([(1 + 1) / 2, (half + 1) / 2]))


def test_a_long_question_is_compared_token_by_token_too(monkeypatch):
    document = DocumentVectors(
        chunks=torch.zeros(4, WIDTH),
        tokens=torch.randn(30, TOKEN_WIDTH),
        chunk_of=torch.arange(30) // 8,
        token_starts=torch.arange(30),
    )
    question = QuestionVectors(whole=torch.zeros(WIDTH), tokens=torch.randn(40, TOKEN_WIDTH))
    in_blocks = document.chunk_similarity(question)
    monkeypatch.setattr(module, "QUESTION_BLOCK", 100)
    torch.testing.assert_close(in_blocks, document.chunk_similarity(question))


def test_vectors_follow_the_text(encoder):
    oil, back = "The pump needs oil every year. ", "Returns are accepted within 30 days of the purchase. "
    text = oil * 60 + back + oil * 60 + "     "
    starts = np.array([0, 30 * len(oil), 60 * len(oil), 60 * len(oil) + len(back), len(text) - 5])
    vectors = encoder.document_vectors(text, starts)
    assert vectors.chunks.shape == (5, WIDTH)
    norms = vectors.chunks.float().norm(dim=1)
    torch.testing.assert_close(norms, torch.tensor([1.0, 1, 1, 1, 0]), atol=1e-3, rtol=0)
    torch.testing.assert_close(vectors.tokens.float().norm(dim=1), torch.ones(len(vectors.chunk_of)), atol=1e-3, rtol=0)
    assert vectors.chunk_of.bincount().tolist()[2] == len(encoder.tokenizer.encode(back, add_special_tokens=False).ids)
    question = encoder.question_vectors("How long can I send it back for?")
    assert int(vectors.chunk_similarity(question).argmax()) == 2


def test_texts_without_words_are_near_nothing(encoder):
    empty, question = encoder.document_vectors("   ", np.array([0])), encoder.question_vectors("")
    assert not empty.chunks.any()
    assert torch.isfinite(empty.chunk_similarity(question)).all()
    assert torch.isfinite(encoder.document_vectors("Oil it.", np.array([0])).chunk_similarity(question)).all()


def test_missing_files_are_an_error(tmp_path):
    with pytest.raises(SpecprefillError, match="install specprefill again"):
        load_encoder("cpu", tmp_path)
